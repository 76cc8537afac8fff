// SPDX-License-Identifier: Apache-2.0
// Encoding, in the order of the reference: replace invalid UTF-8 → (Kimi's cuts) → added tokens →
// words → BPE.
#include "text/tokenizer.hpp"

#include <algorithm>

#include "base/at.hpp"
#include "base/gguf.hpp"
#include "base/mapped_file.hpp"
#include "text/model.hpp"
#include "text/utf8.hpp"

namespace espalier::text {
namespace {

constexpr std::size_t kMaxTextBytes = 256u << 20;

// End of the chunk that begins at text[0] in Kimi's encode().
std::size_t published_cut(std::string_view text, const PublishedCuts& cuts,
                          std::size_t& taken_of_text) {
    std::size_t run = 0;
    bool run_is_space = false;
    std::size_t at = 0;
    while (at < text.size()) {
        if (taken_of_text == cuts.text_code_points) {
            taken_of_text = 0;
            break;
        }
        const bool space = is_python_space(code_point_at(text, at));
        run = at > 0 && space == run_is_space ? run + 1 : 1;
        run_is_space = space;
        if (run > cuts.run_code_points) break;
        at += utf8_length(static_cast<unsigned char>(text[at]));
        ++taken_of_text;
    }
    return at;
}

class Encoder {
  public:
    // plain: where no added token may lie, ascending and apart.
    Encoder(const Tokenizer::Model& model, SpecialTokens special,
            std::span<const ByteRange> plain = {})
        : model_(model), special_(special), plain_(plain) {}

    Expected<std::vector<TokenId>> run(std::string_view text) {
        whole_ = text;
        if (!model_.cuts) {
            ESPALIER_RETURN_IF_ERROR(encode_chunk(text));
            return std::move(ids_);
        }
        std::size_t taken = 0;
        while (!text.empty()) {
            const std::size_t cut = published_cut(text, *model_.cuts, taken);
            ESPALIER_RETURN_IF_ERROR(encode_chunk(text.substr(0, cut)));
            text.remove_prefix(cut);
        }
        return std::move(ids_);
    }

  private:
    Expected<void> encode_chunk(std::string_view text) {
        if (special_ == SpecialTokens::as_text) return encode_plain(text);
        return between(model_.first_trie, text, [&](std::string_view rest) {
            return between(model_.second_trie, rest,
                           [&](std::string_view plain) { return encode_plain(plain); });
        });
    }

    // Emits the trie's tokens and hands what lies between them to `other`.
    template <typename Other>
    Expected<void> between(const AddedTokenTrie& trie, std::string_view text, Other&& other) {
        std::size_t from = 0;
        while (!trie.empty()) {
            const auto match = find_outside_plain(trie, text, from);
            if (!match) break;
            ESPALIER_RETURN_IF_ERROR(other(text.substr(from, match->begin - from)));
            ids_.push_back(match->id);
            from = match->end;
        }
        return other(text.substr(from));
    }

    // The trie's first match that touches no plain range: each gap between them is searched as if
    // it were all there is, so a longer token that would reach into one does not hide a shorter.
    std::optional<AddedTokenTrie::Match> find_outside_plain(const AddedTokenTrie& trie,
                                                            std::string_view text,
                                                            std::size_t from) const {
        const auto offset = static_cast<std::size_t>(text.data() - whole_.data());
        auto range = std::ranges::upper_bound(plain_, offset + from, {}, &ByteRange::end);
        while (from < text.size()) {
            const std::size_t gap_end =
                range == plain_.end()
                    ? text.size()
                    : std::min(range->begin - std::min(range->begin, offset), text.size());
            if (from < gap_end)
                if (const auto match = trie.find(text.substr(0, gap_end), from)) return match;
            if (range == plain_.end()) break;
            from = std::max(from, range->end - offset);
            ++range;
        }
        return std::nullopt;
    }

    Expected<void> encode_plain(std::string_view text) {
        if (text.empty()) return {};
        ESPALIER_ASSIGN_OR_RETURN(const std::string_view source,
                                  model_.pre_tokenizer.split(text, prefixed_, words_));
        for (const PreTokenizer::Word word : words_) {
            const std::string_view bytes = source.substr(word.begin, word.end - word.begin);
            const auto found = model_.vocabulary.find(bytes);
            if (found && found->whole) {
                ids_.push_back(found->id);
            } else {
                model_.bpe.encode(bytes, ids_);
            }
        }
        return {};
    }

    const Tokenizer::Model& model_;
    SpecialTokens special_;
    std::span<const ByteRange> plain_;
    std::string_view whole_;  // what plain_ counts in
    std::string prefixed_;
    std::vector<PreTokenizer::Word> words_;
    std::vector<TokenId> ids_;
};

}  // namespace

void Tokenizer::Model::index_tokens(const std::vector<bool>& reachable, bool any_token) {
    std::vector<TokenId> ids;
    for (TokenId id = 0; id < vocabulary.size(); ++id) {
        if (!at(reachable, id)) continue;
        ids.clear();
        if (!any_token) bpe.encode(vocabulary.bytes(id), ids);
        vocabulary.index(id, any_token || (ids.size() == 1 && ids[0] == id));
    }
}

Expected<void> apply_config(const TokenizerConfig& config, std::string_view name,
                            Tokenizer::Model& model) {
    for (const std::string& token : config.special_tokens)
        if (const auto found = model.added_ids.find(token); found != model.added_ids.end())
            at(model.special, found->second) = true;
    const auto find = [&](const std::optional<std::string>& token,
                          std::string_view field) -> Expected<std::optional<TokenId>> {
        if (!token) return std::nullopt;
        const auto found = model.added_ids.find(*token);
        if (found == model.added_ids.end())
            return fail(ErrorKind::invalid, "{}: {} is '{}', which is not an added token", name,
                        field, *token);
        return found->second;
    };
    ESPALIER_ASSIGN_OR_RETURN(model.eos, find(config.eos_token, "eos_token"));
    ESPALIER_ASSIGN_OR_RETURN(const auto bos, find(config.bos_token, "bos_token"));
    if (config.add_bos_token) model.bos = *config.add_bos_token ? bos : std::nullopt;
    model.chat_template = config.chat_template;
    return {};
}

Expected<Tokenizer> Tokenizer::load(const std::filesystem::path& directory) {
    if (is_gguf_name(directory.native())) {
        ESPALIER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(directory));
        const std::string name = directory.filename().string();
        ESPALIER_ASSIGN_OR_RETURN(const GgufHeader header, parse_gguf(file.bytes(), name));
        return from_gguf(header, name);
    }
    const auto read = [&](const char* name) {
        return read_optional_text_file(directory / name, VocabularyLimits::kFileBytes);
    };
    ESPALIER_ASSIGN_OR_RETURN(const auto config, read("tokenizer_config.json"));
    auto tokenizer = [&]() -> Expected<Tokenizer> {
        ESPALIER_ASSIGN_OR_RETURN(const auto json, read("tokenizer.json"));
        if (json) return from_tokenizer_json(*json, config, directory.string());
        ESPALIER_ASSIGN_OR_RETURN(const auto ranks, read("tiktoken.model"));
        if (ranks) return from_tiktoken(*ranks, config, directory.string());
        return fail(ErrorKind::not_found, "{}: neither tokenizer.json nor tiktoken.model is there",
                    directory.string());
    }();
    if (!tokenizer) return tokenizer;
    ESPALIER_ASSIGN_OR_RETURN(auto own_file, read_chat_template_file(directory));
    if (own_file) tokenizer->model_->chat_template = std::move(*own_file);
    return tokenizer;
}

Tokenizer::Tokenizer(std::unique_ptr<Model> model) : model_(std::move(model)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Expected<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                                 SpecialTokens special) const {
    if (text.size() > kMaxTextBytes)
        return fail(ErrorKind::exhausted, "a text of {} bytes, more than the limit of {}",
                    text.size(), kMaxTextBytes);
    if (valid_utf8_prefix(text) == text.size()) return Encoder(*model_, special).run(text);
    std::string valid;
    append_valid_utf8(text, /*keep_unfinished=*/false, valid);
    return Encoder(*model_, special).run(valid);
}

Expected<std::vector<TokenId>> Tokenizer::encode_mixed(std::string_view text,
                                                       std::span<const ByteRange> plain) const {
    if (text.size() > kMaxTextBytes)
        return fail(ErrorKind::exhausted, "a text of {} bytes, more than the limit of {}",
                    text.size(), kMaxTextBytes);
    if (const std::size_t valid = valid_utf8_prefix(text); valid != text.size())
        return fail(ErrorKind::invalid, "the text is not valid UTF-8 at byte {}", valid);
    return Encoder(*model_, SpecialTokens::parsed, plain).run(text);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
    std::string bytes;
    for (const TokenId id : ids)
        if (!skip_special || !is_special(id)) bytes += token_bytes(id);
    if (valid_utf8_prefix(bytes) == bytes.size()) return bytes;
    std::string text;
    append_valid_utf8(bytes, /*keep_unfinished=*/false, text);
    return text;
}

std::string_view Tokenizer::token_bytes(TokenId id) const { return model_->vocabulary.bytes(id); }

std::optional<TokenId> Tokenizer::id_of(std::string_view bytes) const {
    if (const auto added = model_->added_ids.find(std::string(bytes));
        added != model_->added_ids.end())
        return added->second;
    const auto found = model_->vocabulary.find(bytes);
    return found ? std::optional(found->id) : std::nullopt;
}

bool Tokenizer::is_special(TokenId id) const {
    return id >= 0 && id < vocabulary() && at(model_->special, id);
}

bool Tokenizer::is_added(TokenId id) const {
    return id >= 0 && id < vocabulary() && at(model_->added, id);
}

std::int64_t Tokenizer::vocabulary() const { return model_->vocabulary.size(); }
std::optional<TokenId> Tokenizer::bos() const { return model_->bos; }
std::optional<TokenId> Tokenizer::eos() const { return model_->eos; }
const std::string& Tokenizer::chat_template() const { return model_->chat_template; }

}  // namespace espalier::text
