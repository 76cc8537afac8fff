// SPDX-License-Identifier: Apache-2.0
#include "engine/request.hpp"

#include <algorithm>
#include <utility>

#include "cache/page.hpp"

namespace espalier::engine {
namespace {

Expected<void> check_tokens(const char* field, const std::vector<std::int32_t>& tokens,
                            const RequestLimits& limits) {
    for (std::size_t i = 0; i < tokens.size(); ++i)
        if (tokens[i] < 0 || tokens[i] >= limits.vocabulary)
            return fail_field(ErrorKind::invalid, fmt::format("{}[{}]", field, i),
                              "token {} is not an id of the vocabulary of {}", tokens[i],
                              limits.vocabulary);
    return {};
}

Expected<void> check_prompt(const Request& request, const RequestLimits& limits) {
    const auto length = static_cast<std::int64_t>(request.prompt.size());
    if (length == 0) return fail_field(ErrorKind::invalid, "prompt", "has no tokens");
    const std::int64_t output = request.output.max_tokens == 0 ? 0 : 1;
    if (length + output > limits.sizes.max_model_len)
        return fail_field(ErrorKind::invalid, "prompt",
                          "{} tokens; prompt and output together may have {}", length,
                          limits.sizes.max_model_len);
    return check_tokens("prompt", request.prompt, limits);
}

Expected<void> check_choices(const Request& request, const RequestLimits& limits) {
    const std::int32_t most = std::min(kMaxChoices, limits.sizes.max_waiting);
    if (request.choices < 1 || request.choices > most)
        return fail_field(ErrorKind::invalid, "choices", "{}, not within 1…{}", request.choices,
                          most);
    const auto length = static_cast<std::int64_t>(request.prompt.size());
    if (length * request.choices > limits.sizes.max_waiting_tokens)
        return fail_field(ErrorKind::invalid, "prompt",
                          "{} tokens for {} choices; the queue takes {} tokens", length,
                          request.choices, limits.sizes.max_waiting_tokens);
    return {};
}

Expected<void> check_reasoning(const accept::ReasoningRule& rule, const Request& request,
                               const RequestLimits& limits) {
    constexpr const char* kEnds = "reasoning.end_token_ids";
    const auto count = static_cast<std::int64_t>(rule.end_token_ids.size());
    if (count < 1 || count > accept::kMaxStopTokens)
        return fail_field(ErrorKind::invalid, kEnds, "{} ids, not within 1…{}", count,
                          accept::kMaxStopTokens);
    ESPALIER_RETURN_IF_ERROR(check_tokens(kEnds, rule.end_token_ids, limits));
    if (!rule.budget) return {};
    if (*rule.budget < 0)
        return fail_field(ErrorKind::invalid, "reasoning.budget", "{}, at least 0", *rule.budget);
    if (!request.forced_output.empty())
        return fail_field(ErrorKind::invalid, "forced_output",
                          "{} tokens, but a reasoning budget says what may be drawn",
                          request.forced_output.size());
    return {};
}

// Check that a mask asks for no token that ends the output.
Expected<void> check_markers(const accept::ReasoningRule& rule, const accept::OutputRules& rules) {
    for (const std::int32_t token : rule.end_token_ids)
        if (rules.ends_output(token))
            return fail_field(ErrorKind::invalid, "reasoning.end_token_ids",
                              "token {} ends the whole output (eos_token_ids, stop_token_ids)",
                              token);
    return {};
}

// The grammar alone says where the text ends, and by the tokens that end this output.
Expected<void> check_grammar(const Request& request, const accept::OutputRules& rules,
                             const RequestLimits& limits) {
    const accept::OutputOptions& output = rules.options();
    if (output.ignore_eos)
        return fail_field(ErrorKind::invalid, "ignore_eos",
                          "true, but the grammar says where the text ends");
    if (output.min_tokens > 0)
        return fail_field(ErrorKind::invalid, "min_tokens",
                          "{}, but the grammar says where the text ends", output.min_tokens);
    if (!request.forced_output.empty())
        return fail_field(ErrorKind::invalid, "forced_output",
                          "{} tokens, but a grammar says what may be drawn",
                          request.forced_output.size());
    const grammar::Vocabulary& vocabulary = request.grammar->vocabulary();
    if (vocabulary.size() != limits.vocabulary)
        return fail_field(ErrorKind::invalid, "grammar",
                          "compiled for a vocabulary of {}, the model has {}", vocabulary.size(),
                          limits.vocabulary);
    for (const std::int32_t token : vocabulary.stop())
        if (!rules.ends_output(token))
            return fail_field(ErrorKind::invalid, "eos_token_ids",
                              "token {} ends texts of the grammar, but not this output", token);
    return {};
}

// Drafts that the request prescribes, if any.
Expected<std::optional<speculate::DraftShape>> check_drafts(const Request& request) {
    struct Field {
        const char* name;
        std::int32_t value;
    };
    bool given = false;
    for (const Field& field :
         {Field{"draft_depth", request.draft_depth}, Field{"draft_width", request.draft_width},
          Field{"draft_nodes", request.draft_nodes}}) {
        if (field.value == 0) continue;
        given = true;
        if (field.value < 0 || field.value > kMaxDrafts)
            return fail_field(ErrorKind::invalid, field.name, "{}, not within 0…{}", field.value,
                              kMaxDrafts);
    }
    // Without speculation they are hints that cannot apply, as where no drafter is there.
    if (!given || !request.speculate) return std::optional<speculate::DraftShape>();
    const std::int32_t depth = request.draft_depth > 0 ? request.draft_depth
                               : request.draft_nodes > 0
                                   ? std::min(kPrescribedDepth, request.draft_nodes)
                                   : kPrescribedDepth;
    const std::int32_t width = std::max(request.draft_width, 1);
    const std::int32_t nodes =
        request.draft_nodes > 0 ? request.draft_nodes : std::min(depth * width, kMaxDrafts);
    return speculate::DraftShape{.depth = depth, .width = width, .nodes = 1 + nodes};
}

}  // namespace

Expected<CheckedRequest> check_request(Request request, const RequestLimits& limits,
                                       const text::Tokenizer& tokenizer) {
    ESPALIER_RETURN_IF_ERROR(check_prompt(request, limits));
    ESPALIER_RETURN_IF_ERROR(check_choices(request, limits));
    ESPALIER_ASSIGN_OR_RETURN(const auto drafts, check_drafts(request));
    ESPALIER_RETURN_IF_ERROR(check_tokens("expected_output", request.expected_output, limits));
    if (request.reasoning)
        ESPALIER_RETURN_IF_ERROR(check_reasoning(*request.reasoning, request, limits));
    ESPALIER_ASSIGN_OR_RETURN(
        accept::SamplingParameters sampling,
        accept::SamplingParameters::make(request.sampling, limits.vocabulary));
    accept::OutputOptions output = request.output;
    const auto length = static_cast<std::int64_t>(request.prompt.size());
    output.max_tokens = std::min(output.max_tokens, limits.sizes.max_model_len - length);
    if (!request.forced_output.empty()) {
        ESPALIER_RETURN_IF_ERROR(check_tokens("forced_output", request.forced_output, limits));
        output.max_tokens =
            std::min(output.max_tokens, static_cast<std::int64_t>(request.forced_output.size()));
        if (output.min_tokens > 0)
            return fail_field(ErrorKind::invalid, "min_tokens",
                              "{}, but the output is forced, and min_tokens bans tokens",
                              output.min_tokens);
    }
    output.count_tokens = sampling.counts_tokens();
    if (output.eos_token_ids.empty()) output.eos_token_ids = limits.eos_token_ids;
    ESPALIER_ASSIGN_OR_RETURN(
        accept::OutputRules rules,
        accept::OutputRules::make(std::move(output), tokenizer, limits.vocabulary));
    if (request.grammar) ESPALIER_RETURN_IF_ERROR(check_grammar(request, rules, limits));
    if (request.reasoning) ESPALIER_RETURN_IF_ERROR(check_markers(*request.reasoning, rules));
    const std::int64_t pages =
        cache::pages_for(schedule::written_slots(length, rules.options().max_tokens));
    if (pages > limits.sizes.page_count - 1)
        return fail_field(ErrorKind::invalid, "max_tokens",
                          "{} after a prompt of {} tokens need {} pages; the cache has {}",
                          rules.options().max_tokens, length, pages, limits.sizes.page_count - 1);
    return CheckedRequest{std::move(request), std::move(sampling), std::move(rules), drafts};
}

}  // namespace espalier::engine
