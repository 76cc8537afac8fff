// SPDX-License-Identifier: Apache-2.0
#include "runtime/drafters.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "checkpoint/quantization.hpp"
#include "engine/grammar_drafter.hpp"
#include "grammar/compiler.hpp"
#include "model/cost.hpp"
#include "speculate/ngram.hpp"

namespace espalier::runtime {
namespace {

bool has_mtp(const checkpoint::Checkpoint& checkpoint) {
    const checkpoint::ModelConfig& config = checkpoint.config();
    return config.num_nextn_predict_layers > 0 &&
           checkpoint::has_matrix(checkpoint,
                                  fmt::format("model.layers.{}.eh_proj", config.num_hidden_layers));
}

Expected<void> check_available(const DrafterChoice& chosen, const ModelFiles& files) {
    if (chosen.mtp && !has_mtp(*files.checkpoint))
        return fail_field(ErrorKind::not_found, "speculate",
                          "mtp, but {} has no multi-token-prediction layer "
                          "(num_nextn_predict_layers is {}, its tensors would be "
                          "model.layers.{}.*)",
                          files.name, files.checkpoint->config().num_nextn_predict_layers,
                          files.checkpoint->config().num_hidden_layers);
    if (chosen.eagle3 && files.draft == nullptr)
        return fail_field(ErrorKind::not_found, "speculate",
                          "eagle3, but no EAGLE3 draft is named (draft)");
    if (chosen.grammar && !grammar::available())
        return fail_field(ErrorKind::unsupported, "speculate",
                          "grammar, but this build has no grammars");
    if (files.draft != nullptr && chosen.any() && !chosen.eagle3)
        return fail_field(ErrorKind::invalid, "draft",
                          "{} would not be used: speculate does not name eagle3",
                          files.draft->directory().string());
    return {};
}

}  // namespace

std::vector<std::string> DrafterChoice::names() const {
    std::vector<std::string> names;
    if (ngram) names.emplace_back("ngram");
    if (mtp) names.emplace_back("mtp");
    if (eagle3) names.emplace_back("eagle3");
    if (grammar) names.emplace_back(engine::GrammarDrafter::kName);
    return names;
}

Expected<DrafterChoice> choose_drafters(const std::vector<std::string>& wanted,
                                        const ModelFiles& files) {
    DrafterChoice chosen;
    if (wanted == std::vector<std::string>{"off"}) return chosen;
    if (wanted == std::vector<std::string>{"auto"})
        return DrafterChoice{.ngram = true,
                             .mtp = has_mtp(*files.checkpoint),
                             .eagle3 = files.draft != nullptr,
                             .grammar = grammar::available()};
    for (const std::string& name : wanted) {
        bool* const flag = name == "ngram"     ? &chosen.ngram
                           : name == "mtp"     ? &chosen.mtp
                           : name == "eagle3"  ? &chosen.eagle3
                           : name == "grammar" ? &chosen.grammar
                                               : nullptr;
        if (flag == nullptr || *flag)
            return fail_field(
                ErrorKind::invalid, "speculate",
                "{}: each of ngram, mtp, eagle3 and grammar once, or auto or off alone",
                fmt::join(wanted, ","));
        *flag = true;
    }
    if (wanted.empty())
        return fail_field(ErrorKind::invalid, "speculate", "nothing is named, not even off");
    ESPALIER_RETURN_IF_ERROR(check_available(chosen, files));
    return chosen;
}

std::vector<std::string> left_out(const DrafterChoice& chosen, const ModelFiles& files) {
    const auto told = [](const char* name, bool is_possible, const char* lacks) {
        return fmt::format("{} ({})", name, is_possible ? "not asked for" : lacks);
    };
    std::vector<std::string> others;
    if (!chosen.ngram) others.push_back(told("ngram", true, ""));
    if (!chosen.mtp)
        others.push_back(told("mtp", has_mtp(*files.checkpoint), "the model has no such layer"));
    if (!chosen.eagle3)
        others.push_back(told("eagle3", files.draft != nullptr, "no draft is named by --draft"));
    if (!chosen.grammar)
        others.push_back(told("grammar", grammar::available(), "this build has no grammars"));
    return others;
}

LoadOptions with_drafters(LoadOptions options, const DrafterChoice& drafters,
                          const ModelFiles& files) {
    options.mtp = drafters.mtp;
    options.draft = drafters.eagle3 ? files.draft : nullptr;
    return options;
}

cache::KvLayout layout_with(const cache::KvLayout& target, const DrafterChoice& drafters,
                            const ModelFiles& files) {
    std::vector<draft::DraftPlanes> planes;
    const checkpoint::ModelConfig& config = files.checkpoint->config();
    if (drafters.mtp) planes.push_back({config.hidden_size, config.indexer.has_value()});
    if (drafters.eagle3) planes.push_back({.state_width = files.draft->config().hidden_size});
    return draft::layout_with(target, planes);
}

draft::DraftSet draft_set(const LoadedModel& loaded, const DrafterChoice& drafters) {
    return {.target = *loaded.model,
            .mtp = drafters.mtp,
            .eagle3 = drafters.eagle3 ? loaded.eagle3 : nullptr};
}

namespace {

// The batch whose own work hides its launches. Of Sapling, 47 million operations a token, steps of
// 300 to 512 tokens gain 1 to 3 % as recordings and such of 768 nothing (H200). 256 tokens are
// recorded in any case: weights take their time whatever the tokens.
std::int64_t captured_tokens(const checkpoint::ModelConfig& config) {
    constexpr double kHidingWork = 3.2e10;  // operations
    const double token = 2.0 * static_cast<double>(model::count_parameters(config).active);
    return std::max(batch::kCommonTokens, static_cast<std::int64_t>(kHidingWork / token));
}

}  // namespace

batch::CaptureOptions capture_on(const LoadedModel& loaded, bool enforce_eager) {
    return {.capture = loaded.device->kind() == DeviceKind::cuda && !enforce_eager,
            .most_tokens = captured_tokens(loaded.checkpoint->config())};
}

// Splits that a level of drafts may have, where a step's are bounded.
std::int64_t draft_splits(const EngineSizes& sizes) {
    if (sizes.max_step_splits == 0) return 0;
    return std::min(sizes.max_step_splits,
                    mla::row_splits(sizes.max_step_gather, sizes.max_model_len));
}

draft::Machine draft_machine(const LoadedModel& loaded, const batch::CaptureOptions& capture) {
    return {*loaded.device, *loaded.backend, *loaded.kernels, capture, loaded.ranks};
}

draft::PassLimits draft_limits(const EngineSizes& sizes) {
    return {.tokens = sizes.max_step_tokens,
            .nodes = sizes.max_step_gather,
            .rows = sizes.max_rows,
            .max_kv_len = sizes.max_model_len,
            .max_splits = draft_splits(sizes)};
}

Expected<std::vector<std::unique_ptr<speculate::Drafter>>> make_drafters(
    const LoadedModel& loaded, const DrafterChoice& drafters, const EngineSizes& sizes,
    cache::KvStorage& storage, const model::Taps& taps, const batch::CaptureOptions& capture,
    const text::Tokenizer& tokenizer, draft::PassEcho* echo) {
    std::vector<std::unique_ptr<speculate::Drafter>> made;
    if (drafters.ngram)
        made.push_back(std::make_unique<speculate::NgramDrafter>(speculate::NgramLimits{}));
    ESPALIER_ASSIGN_OR_RETURN(auto models, draft_set(loaded, drafters)
                                               .make(draft_machine(loaded, capture),
                                                     draft_limits(sizes), storage, taps, echo));
    for (auto& drafter : models) made.push_back(std::move(drafter));
    if (drafters.grammar) made.push_back(std::make_unique<engine::GrammarDrafter>(tokenizer));
    return made;
}

}  // namespace espalier::runtime
