// SPDX-License-Identifier: Apache-2.0
#include "runtime/model_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace espalier::runtime {

Expected<ModelFiles> ModelFiles::open(const std::string& name, const std::string& draft) {
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened, checkpoint::Checkpoint::open(name));
    return of(std::move(opened), name, draft);
}

Expected<ModelFiles> ModelFiles::of(checkpoint::Checkpoint opened, const std::string& name,
                                    const std::string& draft) {
    ModelFiles files;
    files.name = name;
    ESPALIER_ASSIGN_OR_RETURN(text::Tokenizer tokenizer, text::Tokenizer::load(opened.directory()));
    files.checkpoint = std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
    if (!draft.empty()) {
        auto head = checkpoint::Checkpoint::open_eagle3(draft);
        if (!head) return fail_field(head.error().kind, "draft", "{}", head.error().message);
        files.draft = std::make_shared<const checkpoint::Checkpoint>(std::move(*head));
    }
    files.tokenizer = std::make_shared<const text::Tokenizer>(std::move(tokenizer));
    return files;
}

std::vector<std::string> ModelFiles::notes() const {
    std::vector<std::string> notes;
    const std::vector<std::string>& unused = checkpoint->generation().unused;
    if (!unused.empty())
        notes.push_back(fmt::format("generation_config.json asks for {}, which is not honoured",
                                    fmt::join(unused, ", ")));
    return notes;
}

Expected<std::vector<std::int32_t>> ModelFiles::encode_prompt(std::string_view text,
                                                              text::SpecialTokens special) const {
    ESPALIER_ASSIGN_OR_RETURN(std::vector<std::int32_t> tokens, tokenizer->encode(text, special));
    if (tokenizer->bos()) tokens.insert(tokens.begin(), *tokenizer->bos());
    if (tokens.empty())
        return fail_field(ErrorKind::invalid, "prompt",
                          "is empty, and this model has no token to begin with");
    const std::int64_t vocabulary = checkpoint->config().vocab_size;
    for (const std::int32_t token : tokens)
        if (token >= vocabulary)
            return fail(ErrorKind::invalid,
                        "{}: the tokenizer has token {} for the prompt, but vocab_size of "
                        "config.json is {}",
                        checkpoint->directory().string(), token, vocabulary);
    return tokens;
}

}  // namespace espalier::runtime
