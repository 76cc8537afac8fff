// SPDX-License-Identifier: Apache-2.0
#include "accept/request_progress.hpp"

#include "base/at.hpp"
#include "base/check.hpp"

namespace espalier::accept {

void Emission::append(const Emission& next) {
    text += next.text;
    tokens.insert(tokens.end(), next.tokens.begin(), next.tokens.end());
    top.insert(top.end(), next.top.begin(), next.top.end());
}

void Emission::clear() {
    text.clear();
    tokens.clear();
    top.clear();
}

RequestProgress::RequestProgress(OutputRules rules, const text::Tokenizer& tokenizer,
                                 std::span<const std::int32_t> prompt)
    : rules_(std::move(rules)),
      decoder_(tokenizer, rules_.options().skip_special_tokens),
      scanner_(rules_.options().stop) {
    usage_.prompt_tokens = static_cast<std::int64_t>(prompt.size());
    if (rules_.options().count_tokens) counts_.emplace(prompt);
    // Mostly enough: a walk's steps then take no memory, and text is held back no further than a
    // stop string is long.
    held_text_.reserve(256);
    held_tokens_.reserve(64);
    held_top_.reserve(64 * static_cast<std::size_t>(rules_.options().top_logprobs));
}

std::span<const std::int32_t> RequestProgress::banned_at(std::int32_t depth) const {
    if (usage_.completion_tokens + depth >= rules_.options().min_tokens) return {};
    return rules_.ending_tokens();
}

std::int64_t RequestProgress::draw_position(std::int32_t depth) const {
    return usage_.prompt_tokens + usage_.completion_tokens + depth;
}

NodeCounts RequestProgress::counts_at(std::span<const std::int32_t> path) const {
    CHECK(counts_.has_value(), "counts at a node of a request that does not count tokens");
    return counts_->at(path);
}

ops::CommittedCounts RequestProgress::committed_counts() const {
    CHECK(counts_.has_value(), "counts of a request that does not count tokens");
    return counts_->committed();
}

std::optional<Finish> RequestProgress::commit(const ops::Draw& draw,
                                              std::span<const TokenLogprob> top, Emission& out,
                                              const DraftOrigin& origin) {
    const OutputOptions& options = rules_.options();
    CHECK(!finish_, "token {} after the end of its request", draw.token);
    CHECK(draw.flag == ops::DrawFlag::fine && draw.token >= 0, "token {} with flag {}", draw.token,
          static_cast<int>(draw.flag));
    CHECK(top.size() == static_cast<std::size_t>(options.top_logprobs),
          "{} alternatives with a token, {} asked for", top.size(), options.top_logprobs);
    const bool ends = rules_.ends_output(draw.token);
    CHECK(!ends || banned_at(0).empty(), "token {} was drawn, but is banned before {} tokens",
          draw.token, options.min_tokens);

    ++usage_.completion_tokens;
    if (counts_) counts_->add(draw.token);
    held_tokens_.push_back({{draw.token, draw.logprob, decoded_bytes_, origin}, 0});
    held_top_.insert(held_top_.end(), top.begin(), top.end());
    std::optional<StopMatch> match;
    if (!ends || options.include_stop) match = take_text(decoder_.push(draw.token));
    held_tokens_.back().text_end = decoded_bytes_;

    if (match || ends || tokens_left() == 0) {
        Finish finish;
        if (ends)
            finish = {rules_.is_eos(draw.token) ? FinishReason::eos : FinishReason::stop_token,
                      draw.token};
        if (!match) match = take_text(decoder_.finish());
        return finish_with(finish, match, out);
    }
    emit(held_text_.size() - scanner_.held_bytes(), out);
    return std::nullopt;
}

Finish RequestProgress::end(FinishReason reason, Emission& out) {
    CHECK(!finish_, "a request that has ended ends again");
    return finish_with({reason}, std::nullopt, out);
}

void RequestProgress::count_step(std::int32_t drafted, std::int32_t accepted) {
    CHECK(accepted >= 0 && accepted <= drafted && drafted < 64, "{} of {} drafts accepted",
          accepted, drafted);
    ++usage_.steps;
    usage_.drafted += drafted;
    usage_.accepted += accepted;
    for (std::int32_t depth = 1; depth <= accepted; ++depth) ++at(usage_.accepted_at_depth, depth);
}

void RequestProgress::count_origin(const DraftOrigin& origin, bool accepted) {
    if (!origin.drafted()) return;
    ++at(usage_.drafted_from, origin.drafter);
    if (accepted) ++at(usage_.accepted_from, origin.drafter);
}

std::optional<StopMatch> RequestProgress::take_text(std::string_view piece) {
    const bool may_stop = usage_.completion_tokens > rules_.options().min_tokens;
    decoded_bytes_ += static_cast<std::int64_t>(piece.size());
    if (scanner_.empty()) {
        held_text_ += piece;
        return std::nullopt;
    }
    for (const char byte : piece) {
        held_text_.push_back(byte);
        const std::optional<StopMatch> match = scanner_.push(byte);
        if (match && may_stop) return match;  // with held_text_ ending where the match does
    }
    return std::nullopt;
}

Finish RequestProgress::finish_with(Finish finish, const std::optional<StopMatch>& match,
                                    Emission& out) {
    std::size_t bytes = held_text_.size();
    if (match) {
        finish = {FinishReason::stop_string, match->index};
        if (!rules_.options().include_stop) bytes -= match->bytes;
    }
    emit(bytes, out);
    emit_tokens(held_tokens_.size(), out);
    held_text_.clear();
    finish_ = finish;
    return finish;
}

void RequestProgress::emit(std::size_t bytes, Emission& out) {
    out.text.append(held_text_, 0, bytes);
    held_text_.erase(0, bytes);
    emitted_bytes_ += static_cast<std::int64_t>(bytes);
    std::size_t count = 0;
    while (count < held_tokens_.size() && held_tokens_[count].text_end <= emitted_bytes_) ++count;
    emit_tokens(count, out);
}

void RequestProgress::emit_tokens(std::size_t count, Emission& out) {
    for (std::size_t i = 0; i < count; ++i) out.tokens.push_back(held_tokens_[i].token);
    const auto top = static_cast<std::ptrdiff_t>(
        count * static_cast<std::size_t>(rules_.options().top_logprobs));
    out.top.insert(out.top.end(), held_top_.begin(), held_top_.begin() + top);
    held_tokens_.erase(held_tokens_.begin(),
                       held_tokens_.begin() + static_cast<std::ptrdiff_t>(count));
    held_top_.erase(held_top_.begin(), held_top_.begin() + top);
}

}  // namespace espalier::accept
