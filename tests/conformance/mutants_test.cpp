// SPDX-License-Identifier: Apache-2.0
// The suite must be able to fail: kernels with the bugs that other engines have had, each on top of
// correct ones, and the check that has to see it.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <span>

#include "base/element.hpp"
#include "conformance/plain_select.hpp"
#include "conformance/suite.hpp"

namespace espalier::conformance {
namespace {

using namespace mla;

using Absorbed = std::function<Expected<void>(const Kernels&, OpContext&, AbsorbedCall)>;

struct Mutant {
    std::string name;
    std::string_view check;
    Absorbed absorbed;
    Choice choice = Choice::right;
};

class MutantKernels final : public Kernels {
  public:
    explicit MutantKernels(Absorbed absorbed, Choice choice)
        : base_(make_cpu_kernels(best_cpu_variant())),
          absorbed_(std::move(absorbed)),
          choice_(choice) {}
    Expected<void> select(OpContext&, const SelectCall& call) const override {
        plain_select(call, choice_);
        return {};
    }
    Expected<void> check_indexer() const override { return {}; }
    Expected<void> absorbed(OpContext& context, const AbsorbedCall& call) const override {
        return absorbed_(*base_, context, call);
    }
    Expected<void> decompressed(OpContext& context, const DecompressedCall& call) const override {
        return base_->decompressed(context, call);
    }
    // Keeps what should have been flushed to 0 (bf16 rows only), and forgets earlier flags.
    Expected<void> append(OpContext& context, const AppendCall& call) const override {
        if (call.nonfinite != nullptr) std::fill_n(call.nonfinite, call.tokens, std::uint8_t{0});
        ESPALIER_RETURN_IF_ERROR(base_->append(context, call));
        for (std::int64_t token = 0; token < call.tokens; ++token) {
            if (call.slot[token] < 0) continue;
            std::byte* row = call.kv.data + call.slot[token] * kKey * 2;
            for (std::int64_t d = 0; d < kLatent; ++d)
                store_element(row, DType::bf16, d, call.latent[token * call.latent_stride + d]);
        }
        return {};
    }
    // Moves backwards, so that a slot is overwritten before it is read.
    Expected<void> compact(OpContext& context, const CompactCall& call) const override {
        for (std::int64_t i = call.moves - 1; i >= 0; --i)
            ESPALIER_RETURN_IF_ERROR(
                base_->compact(context, {1, call.source + i, call.destination + i, call.kv}));
        return {};
    }
    std::size_t scratch_bytes(const Capacities& most) const override {
        return base_->scratch_bytes(most);
    }
    // One byte: whether a call has used it.
    std::size_t plan_bytes(const Capacities&) const override { return 1; }
    Expected<void> plan(OpContext&, const AbsorbedCall& call) const override {
        *call.plan = std::byte{0};
        return {};
    }

  private:
    std::unique_ptr<Kernels> base_;
    Absorbed absorbed_;
    Choice choice_;
};

std::vector<MaskKind> masks_with(const RaggedRows& rows, MaskKind from, MaskKind to) {
    std::vector<MaskKind> masks(rows.mask, rows.mask + rows.rows);
    for (MaskKind& mask : masks)
        if (mask == from) mask = to;
    return masks;
}

std::vector<std::uint8_t> mask_bytes(const RaggedRows& rows,
                                     const std::function<std::uint8_t(std::uint8_t)>& change) {
    std::vector<std::uint8_t> bytes(rows.custom_mask, rows.custom_mask + rows.custom_mask_len);
    for (std::uint8_t& byte : bytes) byte = change(byte);
    return bytes;
}

// Runs, then changes every output and lse of the rows' own tokens.
Expected<void> change_outputs(const Kernels& base, OpContext& context, const AbsorbedCall& call,
                              const std::function<void(float&, float&)>& change) {
    ESPALIER_RETURN_IF_ERROR(base.absorbed(context, call));
    for (std::int64_t token = call.rows.q_indptr[0]; token < call.rows.token_end; ++token)
        for (std::int64_t head = 0; head < call.heads; ++head) {
            const std::int64_t packed = token * call.heads + head;
            float unused = 0.0f;
            float& lse = call.lse == nullptr ? unused : call.lse[packed];
            const float before = lse;
            for (std::int64_t d = 0; d < kLatent; ++d) {
                float value = load_element(call.out, call.out_dtype, packed * kLatent + d);
                lse = before;
                change(value, lse);
                store_element(call.out, call.out_dtype, packed * kLatent + d, value);
            }
        }
    return {};
}

float next_up(float value) { return value == 0.0f ? value : value * 1.02f; }

std::vector<Mutant> mutants() {
    const auto as_it_is = [](const Kernels& base, OpContext& context, const AbsorbedCall& call) {
        return base.absorbed(context, call);
    };
    return {
        {"PaddingIsLeftAlone", "nothing",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             call.rows.token_end = call.rows.q_indptr[call.rows.rows];
             return base.absorbed(context, call);
         }},
        {"EmptyRowsGiveNaN", "nothing",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             return change_outputs(base, context, call, [](float& value, float& lse) {
                 if (std::isinf(lse)) value = std::nanf("");
             });
         }},
        {"WholePagesAreRead", "garbage",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             std::vector<std::int32_t> lengths(call.rows.kv_len, call.rows.kv_len + call.rows.rows);
             for (std::int32_t b = 0; b < call.rows.rows; ++b)
                 if (call.rows.mask[b] == MaskKind::full)
                     for (std::int32_t& length = lengths[static_cast<std::size_t>(b)];
                          length % call.kv.page_tokens != 0; ++length) {
                     }
             call.rows.kv_len = lengths.data();
             call.rows.max_kv_len += 128;
             return base.absorbed(context, call);
         }},
        {"NonFiniteAppendsAreKept", "siblings", as_it_is},
        {"NonFiniteAppendsAreKept", "append", as_it_is},
        {"CompactGoesBackwards", "compact", as_it_is},
        {"OffsetsAreClamped", "bounds",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             std::vector<std::int64_t> offsets(call.rows.custom_mask_offset,
                                               call.rows.custom_mask_offset + call.rows.rows);
             for (std::int64_t& offset : offsets)
                 offset = std::clamp<std::int64_t>(offset, 0, call.rows.custom_mask_len - 1);
             call.rows.custom_mask_offset = offsets.data();
             return base.absorbed(context, call);
         }},
        {"TokensOfAnotherCallAreCleared", "bounds",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             std::memset(call.out, 0,
                         static_cast<std::size_t>(call.rows.q_indptr[0] * call.heads * kLatent) *
                             bytes_of(call.out_dtype));
             return base.absorbed(context, call);
         }},
        {"TablesGoByRow", "tables",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             call.rows.table_row = nullptr;
             return base.absorbed(context, call);
         }},
        {"ElementOffsetsHave31Bits", "large-cache",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             std::vector<std::int32_t> table(
                 call.rows.block_table,
                 call.rows.block_table + call.rows.rows * call.rows.block_stride);
             for (std::int32_t& page : table)
                 if (page > 0) page %= (1 << 30) / (64 * 576) * 2;
             call.rows.block_table = table.data();
             return base.absorbed(context, call);
         }},
        {"BitsDependOnTheCall", "deterministic",
         [calls = 0](const Kernels& base, OpContext& context, AbsorbedCall call) mutable {
             const bool odd = ++calls % 2 == 1;
             return change_outputs(base, context, call, [odd](float& value, float&) {
                 if (odd) value = next_up(value);
             });
         }},
        {"APlanServesOneCall", "plan",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const bool used = call.plan != nullptr && *call.plan != std::byte{0};
             if (call.plan != nullptr) *call.plan = std::byte{1};
             return change_outputs(base, context, call, [used](float& value, float&) {
                 if (used) value = next_up(value);
             });
         }},
        {"AnEarlyCallMissesItsOwnSlots", "early",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             std::vector<std::int32_t> lengths(call.rows.kv_len, call.rows.kv_len + call.rows.rows);
             for (std::int32_t& length : lengths)
                 if (call.history_stands) length = std::max(length - 1, 0);
             call.rows.kv_len = lengths.data();
             return base.absorbed(context, call);
         }},
        {"LaunchesForgetTheLastRow", "launches",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             std::vector<std::int32_t> lengths(call.rows.kv_len, call.rows.kv_len + call.rows.rows);
             if (call.partial_bytes > 0) lengths.back() = 0;
             call.rows.kv_len = lengths.data();
             return base.absorbed(context, call);
         }},
        {"BitsDependOnTheBatch", "rows",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const bool many = call.rows.rows > 4;
             return change_outputs(base, context, call, [many](float& value, float&) {
                 if (many) value = next_up(value);
             });
         }},
        {"BitsDependOnTheMaskKind", "chain",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const bool tree = call.rows.mask[0] == MaskKind::tree;
             return change_outputs(base, context, call, [tree](float& value, float&) {
                 if (tree) value = next_up(value);
             });
         }},
        {"BitsDependOnHiddenKeys", "path",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const bool tree = call.rows.mask[0] == MaskKind::tree;
             return change_outputs(base, context, call, [tree](float& value, float&) {
                 if (tree) value = next_up(value);
             });
         }},
        {"TailIsTheWindow", "levels",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             call.rows.tail_len = nullptr;
             return base.absorbed(context, call);
         }},
        {"RowsOfOneTokenSeeAllSlots", "levels",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const auto masks = masks_with(call.rows, MaskKind::tree, MaskKind::full);
             if (call.rows.max_q_len == 1) call.rows.mask = masks.data();
             return base.absorbed(context, call);
         }},
        {"RowsOfOneTokenSplitByAllSlots", "thresholds",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const bool single = call.rows.max_q_len == 1;
             return change_outputs(base, context, call, [single](float& value, float&) {
                 if (single) value = next_up(value);
             });
         }},
        {"SlotZeroIsSeen", "first-slot",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             call.rows.first_slot = 0;
             return base.absorbed(context, call);
         }},
        {"TilesCountFromSlotZero", "first-slot",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const bool later = call.rows.first_slot > 0;
             return change_outputs(base, context, call, [later](float& value, float&) {
                 if (later) value = next_up(value);
             });
         }},
        {"ListsAreSorted", "lists",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             for (std::int64_t token = call.rows.q_indptr[0];
                  call.lists.count != nullptr && token < call.rows.q_indptr[call.rows.rows];
                  ++token) {
                 std::int32_t* list = call.lists.slots + token * call.lists.stride;
                 std::sort(list, list + std::max(call.lists.count[token], 0));
             }
             return base.absorbed(context, call);
         }},
        {"ListsAreForgotten", "lists",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             call.lists = {};
             return base.absorbed(context, call);
         }},
        {"TreeSlotsAreForcedIn", "select", as_it_is, Choice::tree_slots_first},
        {"TreeSlotsAreForcedIn", "select-path", as_it_is, Choice::tree_slots_first},
        {"TiesGoToTheHigherSlot", "select", as_it_is, Choice::ties_to_the_higher},
        {"RejectedSlotsAreScored", "select", as_it_is, Choice::rejected_slots_too},
        {"RejectedSlotsAreScored", "select-path", as_it_is, Choice::rejected_slots_too},
        {"TheRootScoresForAll", "select", as_it_is, Choice::root_for_all},
        {"TheRootScoresForAll", "select-path", as_it_is, Choice::root_for_all},
        {"LengthsAreReadAtCapture", "graph",
         [seen = std::map<const void*, std::vector<std::int32_t>>()](
             const Kernels& base, OpContext& context, AbsorbedCall call) mutable {
             std::vector<std::int32_t>& lengths = seen[call.rows.kv_len];
             if (lengths.empty())
                 lengths.assign(call.rows.kv_len, call.rows.kv_len + call.rows.rows);
             call.rows.kv_len = lengths.data();
             return base.absorbed(context, call);
         }},
        {"WrongWordsAreAccepted", "refusals",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) -> Expected<void> {
             if (call.heads == 129) return {};
             return base.absorbed(context, call);
         }},
        {"LargeScoresOverflow", "overflow",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             return change_outputs(base, context, call, [](float& value, float& lse) {
                 if (lse > 5000.0f) value = std::nanf("");
             });
         }},
        {"CausalIsANoOp", "accuracy",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const auto masks = masks_with(call.rows, MaskKind::causal, MaskKind::full);
             call.rows.mask = masks.data();
             return base.absorbed(context, call);
         }},
        {"MaskBytesAreSigned", "accuracy",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const auto bytes = mask_bytes(
                 call.rows, [](std::uint8_t byte) { return byte < 128 ? byte : std::uint8_t{0}; });
             call.rows.custom_mask = bytes.data();
             return base.absorbed(context, call);
         }},
        {"HolesInHistoryAreIgnored", "accuracy",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const auto bytes = mask_bytes(call.rows, [](std::uint8_t) { return std::uint8_t{1}; });
             call.rows.custom_mask = bytes.data();
             return base.absorbed(context, call);
         }},
        {"LseIsBinary", "accuracy",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             return change_outputs(base, context, call,
                                   [](float&, float& lse) { lse *= 1.44269504f; });
         }},
        {"ProbabilitiesAreCoarse", "snr",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             // Truncated instead of rounded: 6 dB.
             const DType wanted = call.out_dtype;
             std::vector<float> out(static_cast<std::size_t>(call.rows.token_end) *
                                    static_cast<std::size_t>(call.heads) * kLatent);
             std::byte* target = call.out;
             call.out = reinterpret_cast<std::byte*>(out.data());
             call.out_dtype = DType::f32;
             const Expected<void> done = base.absorbed(context, call);
             for (std::size_t i = 0; i < out.size(); ++i)
                 store_element(
                     target, wanted, static_cast<std::int64_t>(i),
                     std::bit_cast<float>(std::bit_cast<std::uint32_t>(out[i]) & 0xffff0000u));
             return done;
         }},
        {"OutputDependsOnLse", "outputs",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             const bool none = call.lse == nullptr;
             return change_outputs(base, context, call, [none](float& value, float&) {
                 if (none) value = next_up(value);
             });
         }},
        {"RanksSeeLocalSlots", "ranks",
         [](const Kernels& base, OpContext& context, AbsorbedCall call) {
             call.rows.dcp_world = 1;
             call.rows.dcp_rank = 0;
             call.rows.global_kv_len = nullptr;
             return base.absorbed(context, call);
         }},
    };
}

class ConformanceMutants : public testing::TestWithParam<Mutant> {};
std::string mutant_name(const testing::TestParamInfo<Mutant>& mutant) {
    std::string name = mutant.param.name + "_";
    for (const char c : mutant.param.check)
        if (c != '-') name += c;
    return name;
}
INSTANTIATE_TEST_SUITE_P(All, ConformanceMutants, testing::ValuesIn(mutants()), mutant_name);

TEST_P(ConformanceMutants, AreFound) {
    const auto device = make_host_device(
        "mutant", std::make_unique<MutantKernels>(GetParam().absorbed, GetParam().choice),
        Allocation::exact);
    const Check* check = find_check(GetParam().check);
    ASSERT_NE(check, nullptr);
    Support support;  // not asked: what it takes is no secret, and asking is a call too
    support.format = KvFormat::bf16;
    support.queries = {DType::bf16};
    support.storage = support.lists = support.select = true;
    CpuDevice oracle_device(1);
    Outcome outcome;
    for (std::uint64_t seed = 1; seed <= 6 && outcome.failures == 0; ++seed)
        outcome.add(run_check(*check, *device, support, oracle_device, seed));
    EXPECT_GT(outcome.failures, 0) << outcome.cases << " cases, none failed";
    EXPECT_FALSE(outcome.first_failure.empty());
}

// The plain choice that the mutants are made of is right without a bug.
TEST(ConformanceMutants, ThePlainChoiceIsNone) {
    const auto device = make_host_device(
        "plain", std::make_unique<MutantKernels>(Absorbed(), Choice::right), Allocation::exact);
    Support support;
    support.format = KvFormat::bf16;
    support.select = true;
    CpuDevice oracle_device(1);
    for (const char* name : {"select", "select-path"})
        for (std::uint64_t seed = 1; seed <= 6; ++seed) {
            const Outcome outcome =
                run_check(*find_check(name), *device, support, oracle_device, seed);
            EXPECT_EQ(outcome.failures, 0) << outcome.first_failure;
        }
}

}  // namespace
}  // namespace espalier::conformance
