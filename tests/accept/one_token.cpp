// SPDX-License-Identifier: Apache-2.0
#include "accept/one_token.hpp"

#include <algorithm>
#include <optional>

#include "accept/tiny_tokenizer.hpp"

namespace espalier::accept {
namespace {

using Tokens = std::vector<std::int32_t>;

bool has(const Tokens& list, std::int32_t value) {
    return std::find(list.begin(), list.end(), value) != list.end();
}

Tokens ending_tokens(const OutputOptions& options) {
    Tokens ending = options.stop_token_ids;
    if (!options.ignore_eos)
        for (const std::int32_t id : options.eos_token_ids) ending.push_back(id);
    for (const std::string_view special : {kEos, kTurn})
        for (const std::string& stop : options.stop)
            if (stop == special) ending.push_back(id_of(special));
    return ending;
}

// whole: nothing follows, so unfinished bytes are text as well.
std::string text_of(std::span<const std::int32_t> tokens, const OutputOptions& options,
                    bool whole) {
    text::StreamDecoder decoder(tiny_tokenizer(), options.skip_special_tokens);
    std::string text;
    for (const std::int32_t token : tokens) text += decoder.push(token);
    if (whole) text += decoder.finish();
    return text;
}

struct Match {
    std::size_t begin, end;
    std::int32_t index;
};

// The first match that ends beyond `after`; of those with that end the longest.
std::optional<Match> first_match(const std::string& text, const std::vector<std::string>& stops,
                                 std::size_t after) {
    for (std::size_t end = after + 1; end <= text.size(); ++end) {
        std::optional<Match> best;
        for (std::size_t i = 0; i < stops.size(); ++i)
            if (std::string_view(text).substr(0, end).ends_with(stops[i]))
                if (const std::size_t begin = end - stops[i].size(); !best || begin < best->begin)
                    best = Match{begin, end, static_cast<std::int32_t>(i)};
        if (best) return best;
    }
    return std::nullopt;
}

// Longest end of the text that begins a stop string without being all of it.
std::size_t held_bytes(const std::string& text, const std::vector<std::string>& stops) {
    for (std::size_t held = text.size(); held > 0; --held)
        for (const std::string& stop : stops)
            if (held < stop.size() && text.ends_with(stop.substr(0, held))) return held;
    return 0;
}

class Run {
  public:
    Run(const OutputOptions& options, std::span<const std::int32_t> prompt)
        : options_(options), ending_(ending_tokens(options)) {
        for (const std::int32_t token : prompt) counts_[token].in_prompt = true;
    }

    PlainOutput operator()(const Target& target) {
        while (!finished_) {
            const bool banned = size(output_.tokens) < options_.min_tokens;
            const PlainDraw drawn = target(output_.tokens, banned ? ending_ : Tokens{}, counts_);
            if (drawn.draw.flag != ops::DrawFlag::fine) {
                finished_ = true;
                output_.finish = {drawn.draw.flag == ops::DrawFlag::nothing_left
                                      ? FinishReason::nothing_left
                                      : FinishReason::bad_numbers,
                                  -1};
                show(text_of(output_.tokens, options_, false));
                break;
            }
            output_.tokens.push_back(drawn.draw.token);
            ++counts_[drawn.draw.token].in_output;
            drawn_.push_back(drawn);
            look();
        }
        return output_;
    }

  private:
    template <typename T>
    static std::int64_t size(const T& list) {
        return static_cast<std::int64_t>(list.size());
    }

    // After a token: has the output ended, and what of its text can be shown?
    void look() {
        const std::int32_t last = output_.tokens.back();
        const std::int64_t count = size(output_.tokens);
        const bool ends = has(ending_, last);
        Tokens shown = output_.tokens;
        if (ends && !options_.include_stop) shown.pop_back();
        std::string text = text_of(shown, options_, ends || count == options_.max_tokens);
        std::optional<Match> match;
        if (count > options_.min_tokens) {
            const auto first =
                std::span(output_.tokens).first(static_cast<std::size_t>(options_.min_tokens));
            match = first_match(text, options_.stop, text_of(first, options_, false).size());
        }
        finished_ = match || ends || count == options_.max_tokens;
        if (match) {
            output_.finish = {FinishReason::stop_string, match->index};
            text.resize(options_.include_stop ? match->end : match->begin);
        } else if (ends) {
            const bool eos = has(options_.eos_token_ids, last);
            output_.finish = {eos ? FinishReason::eos : FinishReason::stop_token, last};
        } else if (!finished_) {
            text.resize(text.size() - held_bytes(text, options_.stop));
        }
        show(text);
    }

    void show(const std::string& visible) {
        if (!visible.starts_with(output_.text)) throw std::logic_error("text was taken back");
        PlainStep step;
        step.text = visible.substr(output_.text.size());
        output_.text = visible;
        const std::span<const std::int32_t> all = output_.tokens;
        for (; shown_tokens_ < all.size(); ++shown_tokens_) {
            const std::size_t i = shown_tokens_;
            if (!finished_ && text_of(all.first(i + 1), options_, false).size() > visible.size())
                break;
            step.tokens.push_back(
                {all[i], drawn_[i].draw.logprob, size(text_of(all.first(i), options_, false))});
            step.top.insert(step.top.end(), drawn_[i].top.begin(), drawn_[i].top.end());
        }
        output_.steps.push_back(step);
    }

    OutputOptions options_;
    Tokens ending_;
    PlainCounts counts_;
    std::vector<PlainDraw> drawn_;
    std::size_t shown_tokens_ = 0;
    bool finished_ = false;
    PlainOutput output_;
};

}  // namespace

PlainOutput run_one_token_at_a_time(const OutputOptions& options,
                                    std::span<const std::int32_t> prompt, const Target& target) {
    return Run(options, prompt)(target);
}

}  // namespace espalier::accept
