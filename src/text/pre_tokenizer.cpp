// SPDX-License-Identifier: Apache-2.0
#include "text/pre_tokenizer.hpp"

#include <string>

#include "text/unicode_stand_ins.hpp"

namespace espalier::text {
namespace {

using Word = PreTokenizer::Word;

Expected<void> split_piece(const SplitStep& step, std::string_view shown, Word piece,
                           std::vector<Word>& out) {
    const std::string_view subject = shown.substr(piece.begin, piece.end - piece.begin);
    std::size_t from = 0;
    const auto emit = [&](std::size_t begin, std::size_t end) {
        out.push_back({piece.begin + static_cast<std::uint32_t>(begin),
                       piece.begin + static_cast<std::uint32_t>(end)});
    };
    while (from < subject.size()) {
        ESPALIER_ASSIGN_OR_RETURN(const std::optional<Regex::Match> match,
                                  step.regex.find(subject, from));
        const std::size_t begin = match ? match->begin : subject.size();
        if (step.keep_between && begin > from) emit(from, begin);
        if (!match) break;
        emit(match->begin, match->end);
        from = match->end;
    }
    return {};
}

// Copies the pieces with a space before each that lacks one, and moves their bounds along.
void prefix_pieces(std::string_view text, std::vector<Word>& pieces, std::string& prefixed) {
    std::string copy;
    copy.reserve(text.size() + pieces.size());
    for (Word& piece : pieces) {
        const std::string_view old = text.substr(piece.begin, piece.end - piece.begin);
        piece.begin = static_cast<std::uint32_t>(copy.size());
        if (!old.starts_with(' ')) copy.push_back(' ');
        copy.append(old);
        piece.end = static_cast<std::uint32_t>(copy.size());
    }
    prefixed = std::move(copy);
}

}  // namespace

Expected<std::string_view> PreTokenizer::split(std::string_view valid_text, std::string& prefixed,
                                               std::vector<Word>& words) const {
    std::string_view text = valid_text;
    std::string scratch;
    std::string_view shown = with_stand_ins(text, scratch);
    words.clear();
    if (!text.empty()) words.push_back({0, static_cast<std::uint32_t>(text.size())});
    std::vector<Word> next;
    for (std::size_t step = 0; step <= steps.size(); ++step) {
        if (add_prefix_space && step == prefix_before_step) {
            prefix_pieces(text, words, prefixed);
            text = prefixed;
            shown = with_stand_ins(text, scratch);
        }
        if (step == steps.size()) break;
        next.clear();
        next.reserve(words.size());
        const std::string_view seen = steps[step].without_stand_ins ? text : shown;
        for (const Word piece : words)
            ESPALIER_RETURN_IF_ERROR(split_piece(steps[step], seen, piece, next));
        words.swap(next);
    }
    return text;
}

}  // namespace espalier::text
