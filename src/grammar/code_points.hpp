// SPDX-License-Identifier: Apache-2.0
// Sets of Unicode scalar values, as ascending ranges apart from each other.
#pragma once

#include <cstdint>
#include <vector>

namespace espalier::grammar {

struct CodePointRange {
    std::uint32_t first = 0;
    std::uint32_t last = 0;
    bool operator==(const CodePointRange&) const = default;
};

class CodePointSet {
  public:
    static constexpr std::uint32_t kLast = 0x10ffff;

    CodePointSet() = default;
    CodePointSet(std::initializer_list<CodePointRange> ranges);

    void add(CodePointRange range);
    void add(const CodePointSet& other);
    CodePointSet complement() const;  // of all code points
    CodePointSet without(const CodePointSet& other) const;
    bool empty() const { return ranges_.empty(); }
    const std::vector<CodePointRange>& ranges() const { return ranges_; }

  private:
    void normalise();
    std::vector<CodePointRange> ranges_;
};

}  // namespace espalier::grammar
