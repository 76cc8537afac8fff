// SPDX-License-Identifier: Apache-2.0
#include "cli/grammar_flags.hpp"

#include <fstream>
#include <utility>

#include "cli/flag_names.hpp"
#include "runtime/grammars.hpp"

namespace espalier::cli {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 23;  // what a trace keeps of it

Expected<std::string> read_text(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return fail(ErrorKind::not_found, "{}: cannot be read", path);
    std::string text(kMaxBytes + 1, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (in.bad()) return fail(ErrorKind::io, "{}: cannot be read", path);
    text.resize(static_cast<std::size_t>(in.gcount()));
    if (text.size() > kMaxBytes)
        return fail(ErrorKind::exhausted, "{}: more than {} bytes", path, kMaxBytes);
    return text;
}

}  // namespace

void GrammarFlags::add_to(CLI::App& command) {
    command.add_option("--json-schema", json_schema, "File with the JSON Schema of the output")
        ->check(not_empty());
    command.add_option("--regex", regex, "Regular expression that the whole output matches")
        ->check(not_empty());
    command
        .add_option("--grammar", grammar, "File with the EBNF grammar of the output, its rule root")
        ->check(not_empty());
    command.add_option("--choice", choice, "Text that the output may be; may be repeated")
        ->allow_extra_args(false);
}

const char* GrammarFlags::name() const {
    if (!json_schema.empty()) return "--json-schema";
    if (!grammar.empty()) return "--grammar";
    return regex.empty() ? "--choice" : "--regex";
}

Expected<std::optional<grammar::Specification>> GrammarFlags::specification() const {
    using grammar::Kind;
    using Result = std::optional<grammar::Specification>;
    const int given = (json_schema.empty() ? 0 : 1) + (regex.empty() ? 0 : 1) +
                      (grammar.empty() ? 0 : 1) + (choice.empty() ? 0 : 1);
    if (given > 1)
        return fail(ErrorKind::invalid,
                    "one of --json-schema, --regex, --grammar and --choice, not {}", given);
    if (!json_schema.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(std::string text, read_text(json_schema));
        return Result({.kind = Kind::json_schema, .text = std::move(text)});
    }
    if (!grammar.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(std::string text, read_text(grammar));
        return Result({.kind = Kind::ebnf, .text = std::move(text)});
    }
    if (!regex.empty()) return Result({.kind = Kind::regex, .text = regex});
    if (!choice.empty()) return Result({.kind = Kind::choice, .choices = choice});
    return Result();
}

Expected<std::shared_ptr<const grammar::CompiledGrammar>> GrammarFlags::compiled(
    const runtime::ModelFiles& files) const {
    ESPALIER_ASSIGN_OR_RETURN(const auto wanted, specification());
    if (!wanted) return nullptr;
    ESPALIER_ASSIGN_OR_RETURN(const auto compiler, runtime::make_grammar_compiler(files));
    auto result = compiler->compile(*wanted);
    if (!result && result.error().field.empty())
        return fail(result.error().kind, "{}: {}", name(), result.error().message);
    return result;
}

}  // namespace espalier::cli
