// SPDX-License-Identifier: Apache-2.0
// A pre-tokenizer's regular expression: PCRE2 behind a door that lets in only what means the same
// there as in the reference engines (Oniguruma for tokenizer.json, the Rust regex crate for
// tiktoken).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.hpp"

namespace espalier::text {

enum class RegexDialect {
    oniguruma,  // ^ and $ match at every line
    rust,       // ^ and $ match at the ends of the text
};

// The pattern in PCRE2's notation. Class intersections `[A&&[^B]]` become look-aheads; anything
// that PCRE2 would read differently is refused by name. `name` stands in error messages (file and
// field).
Expected<std::string> to_pcre2(std::string_view pattern, RegexDialect dialect,
                               std::string_view name);

class Regex {
  public:
    static Expected<Regex> compile(std::string_view pattern, RegexDialect dialect,
                                   std::string_view name);

    struct Match {
        std::size_t begin;
        std::size_t end;  // > begin: patterns that match the empty string are refused
    };
    // The leftmost match that begins at or after `from`. `subject` is valid UTF-8 with stand-ins
    // (unicode_stand_ins.hpp) and is all there is: look-behind sees nothing before it. Thread-safe.
    // A pattern that needs too many steps on this text is an error.
    Expected<std::optional<Match>> find(std::string_view subject, std::size_t from) const;

  private:
    struct Code;
    explicit Regex(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
    std::shared_ptr<const Code> code_;
};

}  // namespace espalier::text
