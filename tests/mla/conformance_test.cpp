// SPDX-License-Identifier: Apache-2.0
// A quick slice of the conformance suite on every CPU variant and on the oracle: each guarantee of
// docs/mla_contract.md by name. `espalier selftest` runs the same checks for as long as one likes.
#include "mla/implementation.hpp"

namespace espalier::conformance {
namespace {

class MlaConformance : public testing::TestWithParam<Implementation> {
  protected:
    void holds(std::string_view name) {
        const Check* check = find_check(name);
        ASSERT_NE(check, nullptr) << name;
        const Support support = ask(*device_, GetParam().format, GetParam().dims);
        if (applies(*check, support)) holds(*check, support);
    }
    // The same for each of several query types alone, which one slice may not draw.
    void holds_for_every_query(std::string_view name) {
        Support support = ask(*device_, GetParam().format, GetParam().dims);
        const std::vector<DType> queries = support.queries;
        if (queries.size() < 2) return;
        for (const DType query : queries) {
            SCOPED_TRACE(name_of(query));
            support.queries = {query};
            holds(*find_check(name), support);
        }
    }

  private:
    void holds(const Check& check, const Support& support) {
        const Outcome outcome = run_check(check, *device_, support, oracle_device_, 1);
        EXPECT_GT(outcome.cases, 0);
        EXPECT_EQ(outcome.failures, 0)
            << check.title << ", " << outcome.cases << " cases: " << outcome.first_failure;
    }

    std::unique_ptr<Device> device_ = GetParam().make();
    CpuDevice oracle_device_{1};
};
INSTANTIATE_TEST_SUITE_P(Cpu, MlaConformance, testing::ValuesIn(cpu_implementations()),
                         implementation_name);

class MlaEverywhere : public MlaConformance {};
INSTANTIATE_TEST_SUITE_P(All, MlaEverywhere, testing::ValuesIn(all_implementations()),
                         implementation_name);

TEST_P(MlaEverywhere, NothingVisibleNothingOut) { holds("nothing"); }
TEST_P(MlaEverywhere, GarbageDoesNotLeak) { holds("garbage"); }
TEST_P(MlaEverywhere, NonFiniteAppendsStayInTheirBranch) { holds("siblings"); }
TEST_P(MlaEverywhere, Bounds) { holds("bounds"); }
TEST_P(MlaEverywhere, TokensOnBothSidesOfASplitLength) { holds("thresholds"); }
TEST_P(MlaEverywhere, OneTokenInAnyComposition) { holds("compositions"); }
TEST_P(MlaEverywhere, KeysCountFromFirstSlot) { holds("first-slot"); }
TEST_P(MlaEverywhere, BlockTablesBySlot) { holds("tables"); }
TEST_P(MlaEverywhere, CacheAbove2To31Elements) { holds("large-cache"); }
TEST_P(MlaEverywhere, NoSilentNoOp) { holds("refusals"); }
TEST_P(MlaEverywhere, OverflowSafeScores) { holds("overflow"); }
TEST_P(MlaEverywhere, AListIsDenseAttentionOverIt) { holds("lists"); }
TEST_P(MlaEverywhere, TheBestKeysByScore) { holds("select"); }
TEST_P(MlaEverywhere, NaNScoresFlagTheirTokenAlone) { holds("select-flags"); }
TEST_P(MlaConformance, ATokenChoosesByWhatItSees) { holds("select-path"); }
TEST_P(MlaConformance, Deterministic) { holds("deterministic"); }
TEST_P(MlaConformance, SharedPlan) { holds("plan"); }
TEST_P(MlaConformance, ACallThatBeginsBesideItsAppend) { holds("early"); }
TEST_P(MlaConformance, RowInvariant) { holds("rows"); }
TEST_P(MlaConformance, ChainTreeEqualsCausal) { holds("chain"); }
TEST_P(MlaConformance, PathInvariant) { holds("path"); }
TEST_P(MlaConformance, DraftLevelsEqualTheWholeTree) { holds("levels"); }
TEST_P(MlaConformance, ReplayWithOtherLengths) { holds("graph"); }
TEST_P(MlaConformance, Accuracy) { holds("accuracy"); }
TEST_P(MlaConformance, AccuracyWithEveryQueryType) { holds_for_every_query("accuracy"); }
TEST_P(MlaConformance, PathInvariantWithEveryQueryType) { holds_for_every_query("path"); }
TEST_P(MlaConformance, SignalToNoise) { holds("snr"); }
TEST_P(MlaConformance, OutputTypesAndNoLse) { holds("outputs"); }
TEST_P(MlaConformance, EveryContextParallelRank) { holds("ranks"); }
TEST_P(MlaConformance, DecompressedAccuracy) { holds("prompt"); }
TEST_P(MlaConformance, DecompressedInAnyChunks) { holds("prompt-chunks"); }
TEST_P(MlaConformance, DecompressedNothingAndGarbage) { holds("prompt-garbage"); }
TEST_P(MlaConformance, AppendEqualsTheOracle) { holds("append"); }
TEST_P(MlaConformance, CompactEqualsTheOracle) { holds("compact"); }

// Refused formats run no check above, so the ones that must be taken are named here.
TEST(MlaFormats, TheOracleTakesAllOfThem) {
    const auto oracle = make_oracle_device(Allocation::exact);
    for (const mla::KvFormat format : kFormats) {
        const Support support = ask(*oracle, format);
        EXPECT_EQ(support.queries, legal_queries(format)) << name_of(format);
        EXPECT_TRUE(support.refusals.empty()) << name_of(format);
    }
}

TEST(MlaFormats, EveryCpuVariantTakesAllOfThem) {
    for (const CpuVariant variant : cpu_variants()) {
        const auto device = make_cpu_device(variant, Allocation::exact);
        for (const mla::KvFormat format : kFormats)
            for (const KeyDims& dims : kKeyDims) {
                const Support support = ask(*device, format, dims);
                EXPECT_EQ(support.queries, legal_queries(format)) << name_of(format);
                for (const std::string& refusal : support.refusals)
                    ADD_FAILURE() << name_of(variant) << " refuses " << refusal;
            }
    }
}

}  // namespace
}  // namespace espalier::conformance
