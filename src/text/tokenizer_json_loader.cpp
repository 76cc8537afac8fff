// SPDX-License-Identifier: Apache-2.0
// Reads tokenizer.json: byte-level BPE as DeepSeek publishes it. Every field that would change the
// ids and is not implemented is refused by name.
#include <algorithm>
#include <memory>

#include "base/at.hpp"
#include "base/json.hpp"
#include "text/bpe_vocabulary.hpp"
#include "text/byte_level.hpp"
#include "text/json_fields.hpp"
#include "text/model.hpp"
#include "text/pipeline_loader.hpp"

namespace espalier::text {
namespace {

Expected<BpeTokens> read_vocab(const Json& vocab, std::string_view name) {
    if (!vocab.is_object()) return wrong_type(name, "model.vocab", vocab, "an object");
    BpeTokens tokens;
    tokens.ids.reserve(vocab.size());
    for (const auto& [token, value] : vocab.get_ref<const Json::object_t&>()) {
        const std::string field = fmt::format("model.vocab['{}']", token);
        ESPALIER_RETURN_IF_ERROR(check_token_length(token, name, "model.vocab"));
        ESPALIER_ASSIGN_OR_RETURN(const std::int64_t id,
                                  id_value(value, VocabularyLimits::kTokens, name, field));
        auto bytes = bytes_of_letters(token);
        const bool reachable = bytes.has_value();
        ESPALIER_RETURN_IF_ERROR(
            place_token(id, reachable ? std::move(*bytes) : token, name, field, tokens));
        at(tokens.reachable, id) = reachable;
        tokens.ids.emplace(token, static_cast<TokenId>(id));
    }
    return tokens;
}

// Both notations: "Ġ t" and ["Ġ", "t"].
Expected<MergeParts> merge_parts(const Json& merge, std::string_view name, std::size_t index) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string())
        return MergeParts{merge[0].get_ref<const std::string&>(),
                          merge[1].get_ref<const std::string&>()};
    if (!merge.is_string())
        return wrong_type(name, fmt::format("model.merges[{}]", index), merge,
                          "\"a b\" or [\"a\", \"b\"]");
    return parts_of_text(merge.get_ref<const std::string&>(), {name, "model.vocab", "model.merges"},
                         index);
}

Expected<Bpe> read_merges(const Json& merges, const BpeTokens& tokens, std::string_view name) {
    if (!merges.is_array()) return wrong_type(name, "model.merges", merges, "a list");
    return make_bpe(tokens, merges.size(), {name, "model.vocab", "model.merges"},
                    [&](std::size_t index) { return merge_parts(merges[index], name, index); });
}

Expected<std::vector<AddedToken>> read_added_tokens(const Json& list, std::string_view name,
                                                    BpeTokens& tokens) {
    std::vector<AddedToken> added;
    if (list.is_null()) return added;
    if (!list.is_array()) return wrong_type(name, "added_tokens", list, "a list");
    std::unordered_map<std::string_view, bool> seen;
    for (std::size_t index = 0; index < list.size(); ++index) {
        const Json& entry = list[index];
        const std::string path = fmt::format("added_tokens[{}]", index);
        AddedToken token;
        ESPALIER_ASSIGN_OR_RETURN(const std::string_view content,
                                  string_field(entry, "content", name, path));
        ESPALIER_RETURN_IF_ERROR(check_token_length(content, name, path));
        ESPALIER_ASSIGN_OR_RETURN(
            const std::int64_t id,
            id_value(member(entry, "id"), VocabularyLimits::kTokens, name, path + ".id"));
        ESPALIER_ASSIGN_OR_RETURN(token.special, bool_field(entry, "special", false, name, path));
        ESPALIER_ASSIGN_OR_RETURN(token.normalized,
                                  bool_field(entry, "normalized", !token.special, name, path));
        ESPALIER_RETURN_IF_ERROR(refuse_matching_flags(entry, name, path));
        if (!seen.emplace(content, true).second)
            return fail(ErrorKind::invalid, "{}: {} repeats the content '{}'", name, path, content);
        token.id = static_cast<TokenId>(id);
        token.content = content;
        const auto in_vocab = tokens.ids.find(content);
        if (in_vocab != tokens.ids.end() && in_vocab->second != token.id)
            return fail(ErrorKind::invalid, "{}: {} '{}' has id {}, but model.vocab gives it {}",
                        name, path, content, id, in_vocab->second);
        if (in_vocab == tokens.ids.end()) {
            // The reference's decoder reads an added token as byte letters, too, where it can be
            // read so.
            const auto bytes = bytes_of_letters(content);
            ESPALIER_RETURN_IF_ERROR(
                place_token(id, bytes ? *bytes : token.content, name, path, tokens));
        }
        added.push_back(std::move(token));
    }
    return added;
}

// Options of the BPE model that change the ids.
Expected<bool> read_model_options(const Json& model, std::string_view name) {
    if (!model.is_object()) return wrong_type(name, "model", model, "an object");
    const Json& type = member(model, "type");
    if (!type.is_null() && type != "BPE")
        return fail(ErrorKind::unsupported, "{}: model.type is {}, only \"BPE\" is supported", name,
                    type.dump());
    for (const char* option :
         {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
        const Json& value = member(model, option);
        const bool trivial = value.is_null() || value == "" || (value.is_number() && value == 0);
        if (!trivial)
            return fail(ErrorKind::unsupported, "{}: model.{} is set, which is not supported", name,
                        option);
    }
    ESPALIER_ASSIGN_OR_RETURN(const bool byte_fallback,
                              bool_field(model, "byte_fallback", false, name, "model"));
    if (byte_fallback)
        return fail(ErrorKind::unsupported, "{}: model.byte_fallback is not supported", name);
    return bool_field(model, "ignore_merges", false, name, "model");
}

// transformers would add such a token to the vocabulary; a file pair that relies on it is not read
// halfway.
Expected<void> check_config_tokens(const TokenizerConfig& config, const Tokenizer::Model& model,
                                   std::string_view name) {
    for (const TokenizerConfig::Added& token : config.added_tokens) {
        const auto found = model.added_ids.find(token.content);
        if (found == model.added_ids.end() || found->second != token.id)
            return fail(ErrorKind::unsupported,
                        "{}: added_tokens_decoder has '{}' as {}, tokenizer.json does not", name,
                        token.content, token.id);
    }
    return {};
}

}  // namespace

Expected<Tokenizer> Tokenizer::from_tokenizer_json(std::string_view json_text,
                                                   std::optional<std::string_view> config_json_text,
                                                   std::string_view name) {
    const std::string file = fmt::format("{}/tokenizer.json", name);
    const std::string config_file = fmt::format("{}/tokenizer_config.json", name);
    ESPALIER_ASSIGN_OR_RETURN(const TokenizerConfig config,
                              parse_tokenizer_config(config_json_text, config_file));
    ESPALIER_ASSIGN_OR_RETURN(const Json root, parse_json(json_text, file));
    if (!root.is_object()) return wrong_type(file, "the top level", root, "an object");
    const Json& model_json = member(root, "model");
    ESPALIER_ASSIGN_OR_RETURN(const bool ignore_merges, read_model_options(model_json, file));
    ESPALIER_ASSIGN_OR_RETURN(Pipeline pipeline, read_pipeline(root, file));
    ESPALIER_ASSIGN_OR_RETURN(BpeTokens tokens, read_vocab(member(model_json, "vocab"), file));
    ESPALIER_ASSIGN_OR_RETURN(Bpe bpe, read_merges(member(model_json, "merges"), tokens, file));
    ESPALIER_ASSIGN_OR_RETURN(const auto added,
                              read_added_tokens(member(root, "added_tokens"), file, tokens));

    auto model = std::make_unique<Model>(Vocabulary(tokens.bytes), std::move(bpe));
    model->pre_tokenizer = std::move(pipeline.pre_tokenizer);
    for (const AddedToken& token : added) model->add(token);
    model->index_tokens(tokens.reachable, ignore_merges);
    if (pipeline.bos_token) {
        const auto found = model->added_ids.find(*pipeline.bos_token);
        if (found == model->added_ids.end())
            return fail(ErrorKind::invalid,
                        "{}: post_processor adds '{}', which is not an added token", file,
                        *pipeline.bos_token);
        model->bos = found->second;
    }
    ESPALIER_RETURN_IF_ERROR(check_config_tokens(config, *model, config_file));
    ESPALIER_RETURN_IF_ERROR(apply_config(config, config_file, *model));
    return Tokenizer(std::move(model));
}

}  // namespace espalier::text
