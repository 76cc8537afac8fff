// SPDX-License-Identifier: Apache-2.0
#include "server/output_plan.hpp"

#include <algorithm>
#include <utility>

namespace espalier::server {
namespace {

// The template's own text ends so, white space aside.
bool ends_with(const chat::Rendered& rendered, std::string_view marker) {
    std::string_view text = rendered.text;
    text = text.substr(0, text.find_last_not_of(" \n\r\t") + 1);
    if (!text.ends_with(marker)) return false;
    const std::size_t begin = text.size() - marker.size();
    return rendered.content.empty() || rendered.content.back().end <= begin;
}

bool reasoning_is_open(const output::ReasoningFormat& format, const chat::Rendered& rendered) {
    if (ends_with(rendered, format.begin)) return true;
    return format.always && !ends_with(rendered, format.end);
}

Expected<std::optional<GrammarField>> call_field(const GenerationRequest& request,
                                                 const output::ToolFormat& format,
                                                 const text::Tokenizer& tokenizer) {
    const ToolRequest& tools = request.chat.tools;
    std::vector<output::Function> functions = tools.functions;
    output::CallRules rules{.required = tools.must_call(), .parallel = tools.parallel, .text = {}};
    if (tools.choice == ToolRequest::Choice::named) {
        functions = {tools.functions[tools.named]};
        rules.parallel = false;
    }
    const bool any_strict = std::ranges::any_of(
        functions, [](const output::Function& one) { return one.strict == true; });
    // Free text and calls as the model writes them need no grammar.
    if (!rules.required && !request.grammar && !any_strict && rules.parallel)
        return std::optional<GrammarField>();
    if (request.grammar) rules.text = request.grammar->specification;
    auto calls = output::call_grammar(format, functions, rules, tokenizer);
    // A function that does not say "strict" is held to its schema where a grammar can do that, and
    // to any object otherwise.
    bool insists = true;
    for (output::Function& function : functions) {
        insists = insists && function.strict.has_value();
        if (!function.strict) function.strict = false;
    }
    auto loose = output::call_grammar(format, functions, rules, tokenizer);
    if (!calls && (insists || !loose)) return tl::unexpected<Error>(std::move(calls.error()));
    GrammarField made{calls ? std::move(*calls) : *loose, "tools"};
    made.advice = R"("strict": false leaves a function's arguments open)";
    if (calls && !insists && loose) made.otherwise = std::move(*loose);
    return std::optional(std::move(made));
}

Expected<void> plan_calls(const GenerationRequest& request, const output::ToolFormat* format,
                          const text::Tokenizer& tokenizer, OutputPlan& plan) {
    if (format == nullptr)
        return fail_field(ErrorKind::unsupported, "tools",
                          "how this model writes calls is not known here; --tool-format names a "
                          "form");
    if (request.grammar && request.grammar->specification.kind == grammar::Kind::structural_tag)
        return fail_field(ErrorKind::invalid, request.grammar->field,
                          "goes with no tools: both say where calls stand");
    plan.parser.tools = format;
    for (const output::Function& function : request.chat.tools.functions) {
        plan.parser.functions.push_back(function.name);
        if (format->has_pairs())
            plan.parser.types.emplace(function.name, output::property_types(function.parameters));
    }
    ESPALIER_ASSIGN_OR_RETURN(plan.grammar, call_field(request, *format, tokenizer));
    return {};
}

Expected<void> plan_reasoning(const GenerationRequest& request,
                              const output::ReasoningFormat* format,
                              const text::Tokenizer& tokenizer, const chat::Rendered& rendered,
                              OutputPlan& plan) {
    if (format == nullptr && request.reasoning_budget && !request.reasoning_is_optional)
        return fail_field(ErrorKind::unsupported, request.reasoning_budget_field,
                          "this model has no reasoning that is known here; --reasoning-format "
                          "names a form");
    // A message that is continued has its text begun, behind its reasoning.
    if (format == nullptr || request.chat.continues_final || !reasoning_is_open(*format, rendered))
        return {};
    plan.parser.reasoning = format;
    plan.parser.reasoning_open = true;
    accept::ReasoningRule rule;
    rule.end_token_ids = {*tokenizer.id_of(format->end)};
    // A grammar that follows has the first marker of the calls itself.
    if (format->ended_by_calls && plan.parser.tools != nullptr && !plan.grammar)
        if (const auto id = tokenizer.id_of(plan.parser.tools->opening()))
            rule.end_token_ids.push_back(*id);
    rule.budget = request.reasoning_budget;
    plan.reasoning = std::move(rule);
    return {};
}

bool has_special_marker(const output::ParserOptions& parser, const text::Tokenizer& tokenizer) {
    std::vector<std::string_view> texts;
    if (parser.tools != nullptr) texts = output::markers(*parser.tools);
    if (parser.reasoning_open)
        texts.insert(texts.end(), {parser.reasoning->begin, parser.reasoning->end});
    return std::ranges::any_of(texts, [&](std::string_view text) {
        const auto id = tokenizer.id_of(text);
        return id && tokenizer.is_special(*id);
    });
}

}  // namespace

Expected<OutputPlan> plan_chat(const GenerationRequest& request, const output::Formats& formats,
                               const text::Tokenizer& tokenizer, const chat::Rendered& rendered) {
    OutputPlan plan;
    plan.grammar = request.grammar;
    if (request.chat.tools.may_call()) {
        ESPALIER_RETURN_IF_ERROR(plan_calls(request, formats.tools, tokenizer, plan));
    }
    ESPALIER_RETURN_IF_ERROR(plan_reasoning(request, formats.reasoning, tokenizer, rendered, plan));
    plan.keeps_special_tokens = has_special_marker(plan.parser, tokenizer);
    return plan;
}

}  // namespace espalier::server
