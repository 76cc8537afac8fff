// SPDX-License-Identifier: Apache-2.0
#include "conformance/suite.hpp"

#include <algorithm>
#include <array>
#include <exception>

#include "conformance/checks.hpp"
#include "conformance/prompt.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

constexpr std::array kChecks = {
    Check{"nothing", "1 Nothing visible, nothing out", Entry::absorbed, check_nothing_visible},
    Check{"garbage", "2 Garbage does not leak", Entry::absorbed, check_garbage},
    Check{"siblings", "2 Non-finite appends stay in their branch", Entry::absorbed,
          check_sibling_branches},
    Check{"bounds", "3 Bounds", Entry::absorbed, check_bounds},
    Check{"tables", "3 Block tables by slot", Entry::absorbed, check_tables_by_slot},
    Check{"large-cache", "3 Cache above 2^31 elements", Entry::absorbed, check_large_cache},
    Check{"deterministic", "4 Deterministic", Entry::absorbed, check_deterministic},
    Check{"plan", "4 A shared plan changes no bits", Entry::absorbed, check_shared_plan},
    Check{"early", "4 A call that begins beside the append in front of it", Entry::absorbed,
          check_settled_history},
    Check{"launches", "5 A smaller workspace changes no bits", Entry::absorbed, check_launches},
    Check{"rows", "5 Row-invariant", Entry::absorbed, check_row_invariant},
    Check{"chain", "5 Chain tree equals causal", Entry::absorbed, check_chain_equals_causal},
    Check{"path", "5 Path-invariant", Entry::absorbed, check_path_invariant},
    Check{"thresholds", "5 Tokens on both sides of a split length", Entry::absorbed,
          check_split_thresholds},
    Check{"compositions", "5 One token in any composition", Entry::absorbed, check_compositions},
    Check{"levels", "5 Draft levels equal the whole tree", Entry::absorbed, check_draft_levels},
    Check{"first-slot", "5 Keys count from first_slot", Entry::absorbed, check_first_slot},
    Check{"graph", "6 Graph-safe", Entry::absorbed, check_graph_safe},
    Check{"refusals", "7 No silent no-op", Entry::absorbed, check_no_silent_no_op},
    Check{"overflow", "8 Overflow-safe scores", Entry::absorbed, check_overflow_safe},
    Check{"lists", "9 A list of keys is dense attention over it", Entry::lists, check_lists},
    Check{"select", "10 The best keys by score, ties to the lower", Entry::select, check_select},
    Check{"select-flags", "10 NaN flags its token alone", Entry::select, check_select_flags},
    Check{"select-path", "10 A token chooses by what it sees", Entry::select, check_select_path},
    Check{"accuracy", "Accuracy", Entry::absorbed, check_accuracy},
    Check{"snr", "Accuracy: signal to noise", Entry::absorbed, check_signal_to_noise},
    Check{"outputs", "Accuracy: output types, no lse", Entry::absorbed, check_outputs},
    Check{"ranks", "Accuracy: context parallel", Entry::absorbed, check_context_parallel},
    Check{"prompt", "Decompressed: accuracy", Entry::decompressed, check_prompt_accuracy},
    Check{"prompt-chunks", "Decompressed: 4, 5 same bits in any chunks", Entry::decompressed,
          check_prompt_invariant},
    Check{"prompt-garbage", "Decompressed: 1, 2 nothing and garbage", Entry::decompressed,
          check_prompt_garbage},
    Check{"append", "Append equals the oracle", Entry::storage, check_append_arrays},
    Check{"compact", "Compact equals the oracle", Entry::storage, check_compact_arrays},
};

// One token over one key: the smallest call there is.
Expected<void> ask_absorbed(Device& device, KvFormat format, const KeyDims& dims, DType query) {
    Random random(1);
    Layout layout;
    layout.dims = dims;
    layout.page_tokens = 16;
    layout.query = query;
    const Batch batch(format, 1, {make_row(random, MaskKind::causal, 1, 1, 1)}, layout);
    const Expected<Result> result = run_absorbed(device, batch);
    if (!result) return tl::unexpected<Error>(result.error());
    return {};
}

// The same call with a list.
Expected<void> ask_lists(Device& device, KvFormat format, const KeyDims& dims, DType query) {
    Random random(1);
    Layout layout;
    layout.dims = dims;
    layout.page_tokens = 16;
    layout.query = query;
    const Batch batch(format, 1, {make_row(random, MaskKind::causal, 1, 1, 1)}, layout);
    ESPALIER_ASSIGN_OR_RETURN(const PlacedBatch placed, PlacedBatch::place(device, batch));
    ESPALIER_ASSIGN_OR_RETURN(PlacedOutput output,
                              PlacedOutput::place(device, batch.tokens(), 1, dims.latent, {}));
    const std::vector<std::int32_t> none(static_cast<std::size_t>(batch.tokens()), 0);
    ESPALIER_ASSIGN_OR_RETURN(Buffer lists, device.allocate(none.size() * 4));
    ESPALIER_RETURN_IF_ERROR(device.upload(lists.data(), none.data(), lists.bytes()));
    AbsorbedCall call = absorbed_call(placed, batch, output, {});
    call.lists = {lists.as<std::int32_t>(), lists.as<std::int32_t>(), 1};
    return device.run(1, device.kernels().scratch_bytes(capacities_of(batch, {})),
                      [&](OpContext& context) { return device.kernels().absorbed(context, call); });
}

Expected<void> ask_storage(Device& device, KvFormat format, const KeyDims& dims) {
    KvPages kv;
    kv.format = format;
    kv.page_tokens = 16;
    kv.dims = dims;
    kv.page_stride = page_stride_bytes(format, 16, dims);
    return device.run(1, 0, [&](OpContext& context) -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(device.kernels().append(context, {.kv = kv}));
        return device.kernels().compact(context, {.kv = kv});
    });
}

}  // namespace

std::vector<DType> legal_queries(KvFormat format) {
    switch (format) {
        case KvFormat::f32:
            return {DType::f32};
        case KvFormat::bf16:
            return {DType::bf16};
        case KvFormat::fp16:
            return {DType::f16};
        case KvFormat::fp8_tensor:
            return {DType::bf16, DType::f16, DType::e4m3};
        case KvFormat::fp8_token:
            return {DType::bf16, DType::f16};
    }
    return {};
}

Support ask(Device& device, KvFormat format, const KeyDims& dims) {
    Support support;
    support.format = format;
    support.dims = dims;
    // Any other error is no refusal: the checks will run into it and say so.
    const auto accepted = [&](const Expected<void>& answer) {
        if (answer || answer.error().kind != ErrorKind::unsupported) return true;
        support.refusals.push_back(answer.error().message);
        return false;
    };
    for (const DType query : legal_queries(format)) {
        if (accepted(ask_absorbed(device, format, dims, query))) support.queries.push_back(query);
        if (query != DType::e4m3 && accepted(ask_decompressed(device, format, dims, query)))
            support.prompt_queries.push_back(query);
    }
    support.storage = accepted(ask_storage(device, format, dims));
    if (!support.queries.empty())
        support.lists = accepted(ask_lists(device, format, dims, support.queries.front()));
    support.select = accepted(device.kernels().check_indexer());
    return support;
}

bool takes(Device& device, KvFormat format, const KeyDims& dims) {
    const std::vector<DType> queries = legal_queries(format);
    return std::any_of(queries.begin(), queries.end(), [&](DType query) {
        return ask_absorbed(device, format, dims, query).has_value();
    });
}

void Outcome::add(const Outcome& other) {
    cases += other.cases;
    failures += other.failures;
    worst = std::max(worst, other.worst);
    device_lost = device_lost || other.device_lost;
    if (first_failure.empty() && !other.first_failure.empty()) {
        first_failure = other.first_failure;
        failing_seed = other.failing_seed;
    }
}

std::span<const Check> all_checks() { return kChecks; }

const Check* find_check(std::string_view name) {
    const auto* found = std::find_if(kChecks.begin(), kChecks.end(),
                                     [&](const Check& check) { return check.name == name; });
    return found == kChecks.end() ? nullptr : found;
}

bool applies(const Check& check, const Support& support) {
    // Rounding of P is what the ratio is about; the contract asks it of the 16-bit formats.
    if (check.name == "snr" && support.format != KvFormat::bf16 && support.format != KvFormat::fp16)
        return false;
    switch (check.entry) {
        case Entry::absorbed:
            return !support.queries.empty();
        case Entry::decompressed:
            return !support.prompt_queries.empty();
        case Entry::storage:
            return support.storage;
        case Entry::lists:
            return support.lists;
        case Entry::select:  // of index keys, whatever the latents are: with one format is enough
            return support.select && support.format == KvFormat::bf16;
    }
    return false;
}

Outcome run_check(const Check& check, Device& device, const Support& support,
                  CpuDevice& oracle_device, std::uint64_t seed) {
    Outcome outcome;
    // Checks of one slice should not all draw the same heads and pages.
    std::uint64_t stream = seed;
    for (const char c : check.name) stream = stream * 131 + static_cast<unsigned char>(c);
    Trial trial(device, support, oracle_device, stream, outcome);
    try {
        check.run(trial);
    } catch (const std::exception& error) {  // an arena that is too small, for one
        trial.expect(false, "the kernels threw: {}", error.what());
    }
    if (outcome.failures > 0) outcome.failing_seed = seed;
    return outcome;
}

}  // namespace espalier::conformance
