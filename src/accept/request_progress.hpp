// SPDX-License-Identifier: Apache-2.0
// Where a request stands along its committed text: tokens in, one at a time; text, logprobs, counts
// and the end out. This is the definition of every stop condition: a run of accepted drafts is
// committed token by token through the same door as plain decode, so speculation cannot move an
// end. Called by walk(); pure.
//
// What ends an output, the first in this order where one token meets several:
// - stop_string: the text with this token's contribution completes a stop string (stop_scanner.hpp
//   says which). The text ends before it, or with it under include_stop; what the token holds
//   beyond is dropped.
// - eos, stop_token: the token is one of these. It is committed and counted, but its text is left
//   out unless include_stop.
// - length: it is number max_tokens. (Where that is 0, the engine ends the output with the prompt.)
// The first min_tokens tokens end nothing: ending tokens are banned from being drawn there, and a
// stop string counts only if text of a later token completes it. (length still ends.)
// When an output ends so, bytes of an unfinished code point become U+FFFD and count as text of the
// last token.
//
// What is emitted never has to be taken back: text that may be the beginning of a stop string is
// held until it is not one, and a token is emitted when the text up to its end has been.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accept/output_rules.hpp"
#include "accept/prompt_logprobs.hpp"
#include "accept/stop_scanner.hpp"
#include "accept/token_counts.hpp"
#include "base/draft_origin.hpp"
#include "ops/sampling.hpp"
#include "text/tokenizer.hpp"

namespace espalier::accept {

enum class FinishReason : std::uint8_t {
    eos,
    stop_token,
    stop_string,
    length,
    bad_numbers,   // failed: a node that the walk visited is flagged, or has a NaN or +Inf logit
    nothing_left,  // failed: no token was left to choose
    interrupted,   // cancelled or out of time: nothing in the text
};
inline constexpr std::size_t kFinishReasons = 7;

struct Finish {
    FinishReason reason = FinishReason::length;
    // The token id (eos, stop_token) or the index in `stop` (stop_string); -1 otherwise.
    std::int32_t which = -1;
    bool operator==(const Finish&) const = default;
};

struct CommittedToken {
    std::int32_t token = -1;
    float logprob = 0.0f;
    // Bytes of text before this token's. Tokens that lie wholly in a stop string that was cut off
    // have an offset at or beyond the end of the text.
    std::int64_t text_offset = 0;
    // The draft that was right about it, if one was. How soon a token was there is no part of what
    // it is: two runs of a request may differ here, and compare equal.
    DraftOrigin origin = {};
    bool operator==(const CommittedToken& other) const {
        return token == other.token && logprob == other.logprob && text_offset == other.text_offset;
    }
};

// Output that a client may see now. Calls append; the owner clears it and so keeps its memory.
struct Emission {
    std::string text;  // valid UTF-8
    std::vector<CommittedToken> tokens;
    std::vector<TokenLogprob> top;  // [tokens, top_logprobs]
    void append(const Emission& next);
    void clear();
};

struct Usage {
    std::int64_t prompt_tokens = 0;
    std::int64_t completion_tokens = 0;  // all committed ones, the one that ends the output too
    std::int64_t reasoning_tokens = 0;   // of these: before the marker that ends the reasoning
    std::int64_t steps = 0;
    std::int64_t drafted = 0;   // nodes verified, roots aside
    std::int64_t accepted = 0;  // of these
    // [d]: counted to drafter d (DraftOrigin); sums to drafted and accepted where drafters
    // proposed.
    std::array<std::int64_t, kMaxDrafters> drafted_from{}, accepted_from{};
    // [d]: steps that accepted a draft at depth d; [0] stays 0.
    std::array<std::int64_t, 64> accepted_at_depth{};
    bool operator==(const Usage&) const = default;
};

class RequestProgress {
  public:
    // The tokenizer must outlive this.
    RequestProgress(OutputRules rules, const text::Tokenizer& tokenizer,
                    std::span<const std::int32_t> prompt);
    RequestProgress(RequestProgress&&) = default;
    RequestProgress& operator=(RequestProgress&&) = default;

    // For a node at `depth` below the root, which is the last committed token:
    // ids that must not be drawn there (empty or all of the rules' ending tokens),
    std::span<const std::int32_t> banned_at(std::int32_t depth) const;
    // the position of the token drawn there,
    std::int64_t draw_position(std::int32_t depth) const;
    // and the counts that penalties take; path: its tokens from depth 1 on. Only under
    // count_tokens.
    NodeCounts counts_at(std::span<const std::int32_t> path) const;
    ops::CommittedCounts committed_counts() const;

    // Commits one drawn token (flag fine). top: [top_logprobs]. origin: of the draft that has this
    // token. Returns the end if it is one.
    std::optional<Finish> commit(const ops::Draw& draw, std::span<const TokenLogprob> top,
                                 Emission& out, const DraftOrigin& origin = {});
    // Ends the output where it stands: a failure, an interruption, or no token asked for. Text held
    // back is emitted, bytes of an unfinished code point are not.
    Finish end(FinishReason reason, Emission& out);
    // A verified tree: drafts in it, and how many of them the walk accepted.
    void count_step(std::int32_t drafted, std::int32_t accepted);
    // One draft of that tree and who proposed it.
    void count_origin(const DraftOrigin& origin, bool accepted);
    // Number of committed tokens that are reasoning (constraint.hpp).
    void count_reasoning(std::int64_t tokens) { usage_.reasoning_tokens = tokens; }

    const std::optional<Finish>& finish() const { return finish_; }
    const Usage& usage() const { return usage_; }
    const OutputRules& rules() const { return rules_; }
    std::int64_t tokens_left() const {
        return rules_.options().max_tokens - usage_.completion_tokens;
    }

  private:
    // Takes in decoded text; the stop string it completes, if that ends the output.
    std::optional<StopMatch> take_text(std::string_view piece);
    // Ends the output at the match, or for the other reason.
    Finish finish_with(Finish finish, const std::optional<StopMatch>& match, Emission& out);
    void emit(std::size_t bytes, Emission& out);
    void emit_tokens(std::size_t count, Emission& out);

    OutputRules rules_;
    text::StreamDecoder decoder_;
    StopScanner scanner_;
    std::optional<TokenCounts> counts_;
    Usage usage_;
    std::optional<Finish> finish_;

    struct HeldToken {
        CommittedToken token;
        std::int64_t text_end = 0;  // of all text up to and with this token
    };
    std::string held_text_;
    std::vector<HeldToken> held_tokens_;
    std::vector<TokenLogprob> held_top_;  // [held_tokens_, top_logprobs]
    std::int64_t emitted_bytes_ = 0;
    std::int64_t decoded_bytes_ = 0;  // emitted, held, or beyond the end of the text
};

}  // namespace espalier::accept
