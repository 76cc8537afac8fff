// SPDX-License-Identifier: Apache-2.0
// Reads a regular expression by recursive descent. Used by regex.cpp.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"
#include "grammar/code_points.hpp"
#include "grammar/regex.hpp"
#include "grammar/regex_tree.hpp"

namespace espalier::grammar {

class RegexReader {
  public:
    RegexReader(std::string_view regex, RegexUse use) : regex_(regex), use_(use) {}
    Expected<RegexNode> run();

  private:
    // A part, and how many characters it has once repetitions are written out.
    struct Part {
        RegexNode node{};
        std::int64_t expanded = 0;
    };
    struct Counts {
        std::int64_t least = 1;
        std::optional<std::int64_t> most = 1;  // none: no limit
    };

    Expected<Part> alternatives(int depth);
    Expected<Part> sequence(int depth);
    Expected<Part> atom(int depth);
    Expected<Part> group(int depth);
    Expected<void> group_head();
    Expected<Part> repeated(Part part);
    Expected<Counts> counts();
    Expected<std::int64_t> number();
    Expected<CodePointSet> bracket();
    // \d and its like, or the set of one character; `in_class`: between brackets.
    Expected<CodePointSet> escape(bool in_class);
    Expected<std::uint32_t> hexadecimal(int digits);
    Expected<Part> of_class(const CodePointSet& set);

    bool at_end() const { return at_ == regex_.size(); }
    char peek() const { return at_end() ? '\0' : regex_[at_]; }
    bool take(std::string_view text);
    std::uint32_t next_code_point();
    template <typename... Args>
    tl::unexpected<Error> refuse(ErrorKind kind, fmt::format_string<Args...> format,
                                 Args&&... args) const {
        return fail(kind, "the regular expression at byte {}: {}", at_,
                    fmt::format(format, std::forward<Args>(args)...));
    }

    std::string_view regex_;
    RegexUse use_;
    std::size_t at_ = 0;
};

}  // namespace espalier::grammar
