// SPDX-License-Identifier: Apache-2.0
#include "text/bpe_vocabulary.hpp"

#include <utility>

#include "base/at.hpp"
#include "text/byte_level.hpp"
#include "text/vocabulary.hpp"

namespace espalier::text {
namespace {

Expected<std::array<TokenId, 256>> find_byte_tokens(const BpeTokens& tokens,
                                                    const BpeFields& fields) {
    std::array<TokenId, 256> ids{};
    for (int byte = 0; byte < 256; ++byte) {
        const auto found = tokens.ids.find(letter_of_byte(static_cast<unsigned char>(byte)));
        if (found == tokens.ids.end())
            return fail(ErrorKind::unsupported, "{}: {} has no token for byte 0x{:02x}",
                        fields.file, fields.tokens, byte);
        at(ids, byte) = found->second;
    }
    return ids;
}

}  // namespace

Expected<void> place_token(std::int64_t id, std::string bytes, std::string_view name,
                           std::string_view field, BpeTokens& tokens) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= tokens.bytes.size()) {
        tokens.bytes.resize(at + 1);
        tokens.taken.resize(at + 1);
        tokens.reachable.resize(at + 1);
    }
    if (tokens.taken[at])
        return fail(ErrorKind::invalid, "{}: {} has id {}, which is taken", name, field, id);
    tokens.taken[at] = true;
    tokens.bytes[at] = std::move(bytes);
    return {};
}

Expected<void> check_token_length(std::string_view token, std::string_view name,
                                  std::string_view field) {
    if (!token.empty() && token.size() <= VocabularyLimits::kTokenBytes) return {};
    return fail(ErrorKind::invalid, "{}: {} holds a token of {} bytes, expected 1…{}", name, field,
                token.size(), VocabularyLimits::kTokenBytes);
}

Expected<MergeParts> parts_of_text(std::string_view text, const BpeFields& fields,
                                   std::size_t index) {
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
        return fail(ErrorKind::invalid, "{}: {}[{}] is '{}', expected two parts and one space",
                    fields.file, fields.merges, index, text);
    return MergeParts{text.substr(0, space), text.substr(space + 1)};
}

Expected<Bpe> make_bpe(const BpeTokens& tokens, std::size_t merges, const BpeFields& fields,
                       const std::function<Expected<MergeParts>(std::size_t)>& parts_at) {
    if (merges > static_cast<std::size_t>(VocabularyLimits::kMerges))
        return fail(ErrorKind::exhausted, "{}: {} has {} entries, more than the limit of {}",
                    fields.file, fields.merges, merges, VocabularyLimits::kMerges);
    ESPALIER_ASSIGN_OR_RETURN(const auto byte_tokens, find_byte_tokens(tokens, fields));
    Bpe bpe(byte_tokens, merges);
    std::string joined;
    for (std::size_t index = 0; index < merges; ++index) {
        ESPALIER_ASSIGN_OR_RETURN(const MergeParts parts, parts_at(index));
        joined.assign(parts.left).append(parts.right);
        Merge merge;
        merge.rank = static_cast<std::uint32_t>(index);
        for (const auto& [text, id] :
             {std::pair{parts.left, &merge.left}, std::pair{parts.right, &merge.right},
              std::pair{std::string_view(joined), &merge.merged}}) {
            const auto found = tokens.ids.find(text);
            if (found == tokens.ids.end())
                return fail(ErrorKind::invalid, "{}: {}[{}] names '{}', which is not in {}",
                            fields.file, fields.merges, index, text, fields.tokens);
            *id = found->second;
        }
        if (!bpe.add(merge))
            return fail(ErrorKind::invalid, "{}: {}[{}] repeats the pair '{}', '{}'", fields.file,
                        fields.merges, index, parts.left, parts.right);
    }
    return bpe;
}

}  // namespace espalier::text
