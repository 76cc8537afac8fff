// SPDX-License-Identifier: Apache-2.0
// Reads tiktoken.model (a line per token: base64 bytes, space, rank) and tokenizer_config.json as
// Kimi K2 publishes them. The pattern, the 256 reserved ids and the cuts stand in its
// tokenization_kimi.py, not in a file.
#include <charconv>
#include <memory>

#include "text/model.hpp"
#include "text/tiktoken_ranks.hpp"

namespace espalier::text {
namespace {

constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+)"
    R"(|\s+(?!\S))"
    R"(|\s+)";
constexpr std::size_t kReservedIds = 256;

int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    return c == '/' ? 63 : -1;
}

// Padded base64 with at least one byte; nullopt when it is anything else.
std::optional<std::string> from_base64(std::string_view text) {
    if (text.empty() || text.size() % 4 != 0) return std::nullopt;
    const std::size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
    std::string bytes;
    std::uint32_t bits = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
        const int value = at + padding >= text.size() ? 0 : base64_value(text[at]);
        if (value < 0) return std::nullopt;
        bits = bits << 6 | static_cast<std::uint32_t>(value);
        if (at % 4 != 3) continue;
        for (const int shift : {16, 8, 0}) bytes.push_back(static_cast<char>(bits >> shift & 0xFF));
        bits = 0;
    }
    bytes.resize(bytes.size() - padding);
    return bytes;
}

// The tokens in the order of their ranks, which must be 0, 1, 2 … each once (in any order in the
// file).
Expected<std::vector<std::string>> read_ranks(std::string_view text, std::string_view name) {
    std::vector<std::string> bytes_of_rank;
    std::size_t tokens = 0;
    for (std::size_t line_number = 1; !text.empty(); ++line_number) {
        const std::size_t line_end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, line_end);
        text.remove_prefix(std::min(line_end + 1, text.size()));
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (line.empty()) continue;
        const std::size_t space = std::min(line.find(' '), line.size());
        const std::string_view number = line.substr(std::min(space + 1, line.size()));
        std::int64_t rank = -1;
        const auto [end, error] =
            std::from_chars(number.data(), number.data() + number.size(), rank);
        if (error != std::errc() || end != number.data() + number.size() || rank < 0)
            return fail(ErrorKind::invalid, "{}: line {} has no rank after its token", name,
                        line_number);
        if (rank >= VocabularyLimits::kTokens - static_cast<std::int64_t>(kReservedIds))
            return fail(ErrorKind::invalid, "{}: line {} has rank {}, more than the limit of {}",
                        name, line_number, rank,
                        VocabularyLimits::kTokens - static_cast<std::int64_t>(kReservedIds) - 1);
        const auto bytes = from_base64(line.substr(0, space));
        if (!bytes || bytes->size() > VocabularyLimits::kTokenBytes)
            return fail(ErrorKind::invalid, "{}: line {} has no base64 token of 1…{} bytes", name,
                        line_number, VocabularyLimits::kTokenBytes);
        const auto at = static_cast<std::size_t>(rank);
        if (at >= bytes_of_rank.size()) bytes_of_rank.resize(at + 1);
        if (!bytes_of_rank[at].empty())
            return fail(ErrorKind::invalid, "{}: line {} repeats rank {}", name, line_number, rank);
        bytes_of_rank[at] = *bytes;
        ++tokens;
    }
    if (tokens != bytes_of_rank.size())
        return fail(ErrorKind::invalid, "{}: {} tokens but the highest rank is {}", name, tokens,
                    static_cast<std::int64_t>(bytes_of_rank.size()) - 1);
    return bytes_of_rank;
}

}  // namespace

Expected<Bpe> bpe_of_ranks(const Vocabulary& vocabulary, std::size_t tokens,
                           std::string_view name) {
    std::array<TokenId, 256> byte_ids{};
    for (int byte = 0; byte < 256; ++byte) {
        const char text = static_cast<char>(byte);
        const auto found = vocabulary.find({&text, 1});
        if (!found) return fail(ErrorKind::invalid, "{}: no token for byte 0x{:02x}", name, byte);
        byte_ids[static_cast<std::size_t>(byte)] = found->id;
    }
    std::vector<Merge> merges;
    for (TokenId id = 0; id < static_cast<TokenId>(tokens); ++id) {
        const std::string_view bytes = vocabulary.bytes(id);
        for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
            const auto left = vocabulary.find(bytes.substr(0, cut));
            if (!left) continue;
            const auto right = vocabulary.find(bytes.substr(cut));
            if (right) merges.push_back({left->id, right->id, id, static_cast<std::uint32_t>(id)});
        }
        if (merges.size() > static_cast<std::size_t>(VocabularyLimits::kMerges))
            return fail(ErrorKind::exhausted, "{}: more than {} ways to merge tokens", name,
                        VocabularyLimits::kMerges);
    }
    Bpe bpe(byte_ids, merges.size());
    for (const Merge& merge : merges)
        CHECK(bpe.add(merge), "the pair {}, {} has two merges", merge.left, merge.right);
    return bpe;
}

Expected<void> cut_as_kimi(Tokenizer::Model& model, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(Regex words, Regex::compile(kKimiPattern, RegexDialect::rust, name));
    model.cuts = PublishedCuts{};
    model.pre_tokenizer.steps.push_back({.regex = std::move(words), .keep_between = false});
    return {};
}

namespace {

Expected<std::vector<AddedToken>> reserved_tokens(const TokenizerConfig& config, std::size_t first,
                                                  std::string_view name) {
    std::vector<AddedToken> tokens(kReservedIds);
    for (std::size_t i = 0; i < kReservedIds; ++i) {
        tokens[i].id = static_cast<TokenId>(first + i);
        tokens[i].content = fmt::format("<|reserved_token_{}|>", first + i);
    }
    for (const TokenizerConfig::Added& added : config.added_tokens) {
        const std::int64_t at = added.id - static_cast<std::int64_t>(first);
        if (at < 0 || at >= static_cast<std::int64_t>(kReservedIds))
            return fail(ErrorKind::invalid,
                        "{}: added_tokens_decoder has id {}, outside the reserved {}…{}", name,
                        added.id, first, first + kReservedIds - 1);
        if (added.content.empty() || added.content.size() > VocabularyLimits::kTokenBytes)
            return fail(ErrorKind::invalid,
                        "{}: added_tokens_decoder.{} has {} bytes of content, expected 1…{}", name,
                        added.id, added.content.size(), VocabularyLimits::kTokenBytes);
        tokens[static_cast<std::size_t>(at)].content = added.content;
        tokens[static_cast<std::size_t>(at)].special = added.special;
    }
    return tokens;
}

}  // namespace

Expected<Tokenizer> Tokenizer::from_tiktoken(std::string_view model_text,
                                             std::optional<std::string_view> config_json_text,
                                             std::string_view name) {
    const std::string file = fmt::format("{}/tiktoken.model", name);
    const std::string config_file = fmt::format("{}/tokenizer_config.json", name);
    ESPALIER_ASSIGN_OR_RETURN(TokenizerConfig config,
                              parse_tokenizer_config(config_json_text, config_file));
    ESPALIER_ASSIGN_OR_RETURN(std::vector<std::string> bytes_of_id, read_ranks(model_text, file));
    const std::size_t tokens = bytes_of_id.size();
    ESPALIER_ASSIGN_OR_RETURN(const auto reserved, reserved_tokens(config, tokens, config_file));
    for (const AddedToken& token : reserved) bytes_of_id.push_back(token.content);
    Vocabulary vocabulary(bytes_of_id);
    for (TokenId id = 0; id < static_cast<TokenId>(tokens); ++id) {
        if (vocabulary.find(vocabulary.bytes(id)))
            return fail(ErrorKind::invalid, "{}: the token of rank {} is there twice", file, id);
        vocabulary.index(id, true);
    }
    ESPALIER_ASSIGN_OR_RETURN(Bpe bpe, bpe_of_ranks(vocabulary, tokens, file));
    auto model = std::make_unique<Model>(std::move(vocabulary), std::move(bpe));
    ESPALIER_RETURN_IF_ERROR(cut_as_kimi(*model, file));
    for (const AddedToken& token : reserved) {
        if (model->added_ids.contains(token.content))
            return fail(ErrorKind::invalid, "{}: added_tokens_decoder.{} repeats the content '{}'",
                        config_file, token.id, token.content);
        model->add(token);
    }
    ESPALIER_RETURN_IF_ERROR(apply_config(config, config_file, *model));
    return Tokenizer(std::move(model));
}

}  // namespace espalier::text
