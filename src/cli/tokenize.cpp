// SPDX-License-Identifier: Apache-2.0
// espalier tokenize: what a text becomes, and back.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/model_config.hpp"
#include "cli/command.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {
namespace {

struct TokenizeOptions {
    std::string model;
    std::string text;
    bool text_given = false;
    bool ids_only = false;
    bool special = false;
    std::vector<std::int32_t> decode;
};

// Control characters and broken bytes as JSON would show them.
std::string quoted(std::string_view bytes) {
    return nlohmann::json(std::string(bytes))
        .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Expected<void> run(const TokenizeOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const auto directory, checkpoint::resolve_model_path(options.model));
    ESPALIER_ASSIGN_OR_RETURN(const text::Tokenizer tokenizer, text::Tokenizer::load(directory));
    if (!options.decode.empty()) {
        for (const std::int32_t id : options.decode)
            if (id < 0 || id >= tokenizer.vocabulary())
                return fail_field(ErrorKind::invalid, "decode", "{} is no token: ids are 0…{}", id,
                                  tokenizer.vocabulary() - 1);
        fmt::print("{}\n", tokenizer.decode(options.decode, false));
        return {};
    }
    const std::string input = options.text_given
                                  ? options.text
                                  : std::string(std::istreambuf_iterator<char>(std::cin),
                                                std::istreambuf_iterator<char>());
    const auto special =
        options.special ? text::SpecialTokens::parsed : text::SpecialTokens::as_text;
    ESPALIER_ASSIGN_OR_RETURN(const std::vector<TokenId> ids, tokenizer.encode(input, special));
    if (options.ids_only) {
        fmt::print("{}\n", fmt::join(ids, " "));
        return {};
    }
    for (const TokenId id : ids) fmt::print("{:>8}  {}\n", id, quoted(tokenizer.token_bytes(id)));
    fmt::print(stderr, "{} tokens for {} bytes\n", ids.size(), input.size());
    return {};
}

}  // namespace

Run add_tokenize(CLI::App& app) {
    const auto options = std::make_shared<TokenizeOptions>();
    CLI::App* command =
        app.add_subcommand("tokenize", "Show the tokens of a text, or the text of tokens");
    command
        ->add_option("model", options->model,
                     "Model directory, GGUF file or ORG/NAME in the local hub cache")
        ->required();
    CLI::Option* prompt =
        command->add_option("-p,--prompt", options->text, "Text; standard input if not given");
    command->add_flag("--ids", options->ids_only, "Print ids only, on one line");
    command->add_flag("--special", options->special, "Recognise special tokens in the text");
    command->add_option("--decode", options->decode, "Print the text of these ids instead")
        ->delimiter(',')
        ->allow_extra_args(false);
    return [options, prompt] {
        options->text_given = prompt->count() > 0;
        return run(*options);
    };
}

}  // namespace espalier::cli
