// SPDX-License-Identifier: Apache-2.0
// What a request asks of its output (where it ends, what is reported with it), checked once at the
// edge. Everything past OutputRules::make may rely on it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accept/output_options.hpp"
#include "base/error.hpp"
#include "ops/sampling.hpp"
#include "text/tokenizer.hpp"

namespace espalier::accept {

// A byte of text costs at most one comparison per stop string on average, so these bound the work
// of a request as well as its memory.
inline constexpr std::int64_t kMaxStopStrings = 16;
inline constexpr std::int64_t kMaxStopStringBytes = 256;
inline constexpr std::int64_t kMaxStopTokens = 64;
using ops::kMaxTopLogprobs;

class OutputRules {
  public:
    // vocabulary: ids a draw can have. The tokenizer is asked for special tokens: a stop string
    // that is the text of a special token also stops at that token, since its text may be skipped
    // and then would never be found.
    static Expected<OutputRules> make(OutputOptions options, const text::Tokenizer& tokenizer,
                                      std::int64_t vocabulary);

    const OutputOptions& options() const { return options_; }
    // Ids that end the output wherever they are drawn, ascending, each once. While fewer than
    // min_tokens are committed they must not be drawn.
    std::span<const std::int32_t> ending_tokens() const { return ending_tokens_; }
    bool ends_output(std::int32_t token) const;
    bool is_eos(std::int32_t token) const;

  private:
    OutputRules() = default;
    OutputOptions options_;
    std::vector<std::int32_t> ending_tokens_;
};

}  // namespace espalier::accept
