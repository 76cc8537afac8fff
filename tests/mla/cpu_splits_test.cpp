// SPDX-License-Identifier: Apache-2.0
// What only the CPU's schedule can get wrong: few units and many keys, where one worker folds
// everything or several share the splits.
#include "conformance/compare.hpp"
#include "mla/implementation.hpp"

namespace espalier::conformance {
namespace {

class MlaSplits : public testing::TestWithParam<Implementation> {
  protected:
    Result run(const std::vector<Row>& rows, int workers) {
        const Batch batch(GetParam().format, 3, rows, {.dims = GetParam().dims});
        Expected<Result> result = run_absorbed(*device_, batch, {.workers = workers});
        EXPECT_TRUE(result) << (result ? "" : result.error().message);
        return result ? *result : Result{};
    }

  private:
    std::unique_ptr<Device> device_ = GetParam().make();
};
INSTANTIATE_TEST_SUITE_P(Cpu, MlaSplits, testing::ValuesIn(cpu_implementations()),
                         implementation_name);

TEST_P(MlaSplits, AnyNumberOfWorkersGivesTheSameBits) {
    Random random(21);
    std::vector<Row> rows;
    rows.push_back(make_row(random, mla::MaskKind::causal, 3, 2, 2700));
    rows.push_back(make_row(random, mla::MaskKind::causal, 3, 1, 40));
    rows.push_back(make_row(random, mla::MaskKind::causal, 3, 2, 0));
    rows.push_back(make_row(random, mla::MaskKind::full, 3, 7, 513));
    const Result one = run(rows, 1);
    for (const int workers : {2, 3})
        EXPECT_EQ(bit_difference(run(rows, workers), one), std::nullopt) << workers;
    // Alone it is split, among others it is not.
    const Result alone = run({rows[0]}, 3);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(bit_difference(alone, i, one, i), std::nullopt);
}

}  // namespace
}  // namespace espalier::conformance
