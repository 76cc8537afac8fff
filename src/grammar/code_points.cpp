// SPDX-License-Identifier: Apache-2.0
#include "grammar/code_points.hpp"

#include <algorithm>

namespace espalier::grammar {

CodePointSet::CodePointSet(std::initializer_list<CodePointRange> ranges) : ranges_(ranges) {
    normalise();
}

void CodePointSet::add(CodePointRange range) {
    ranges_.push_back(range);
    normalise();
}

void CodePointSet::add(const CodePointSet& other) {
    ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
    normalise();
}

void CodePointSet::normalise() {
    std::ranges::sort(ranges_, {}, &CodePointRange::first);
    std::vector<CodePointRange> merged;
    for (const CodePointRange& range : ranges_) {
        if (!merged.empty() && range.first <= merged.back().last + 1)
            merged.back().last = std::max(merged.back().last, range.last);
        else
            merged.push_back(range);
    }
    ranges_ = std::move(merged);
}

CodePointSet CodePointSet::complement() const {
    CodePointSet rest;
    std::uint32_t next = 0;
    for (const CodePointRange& range : ranges_) {
        if (range.first > next) rest.ranges_.push_back({next, range.first - 1});
        next = range.last + 1;
    }
    if (next <= kLast) rest.ranges_.push_back({next, kLast});
    return rest;
}

CodePointSet CodePointSet::without(const CodePointSet& other) const {
    // a \ b = not(not a or b)
    CodePointSet rest = complement();
    rest.add(other);
    return rest.complement();
}

}  // namespace espalier::grammar
