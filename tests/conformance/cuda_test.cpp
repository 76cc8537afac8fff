// SPDX-License-Identifier: Apache-2.0
// One slice of the conformance suite on the GPU, each check by name and format. `espalier selftest
// --device cuda` runs the same checks for as long as one likes.
#include <gtest/gtest.h>

#include "conformance/suite.hpp"
#include "support/gpu.hpp"

namespace espalier::conformance {
namespace {

struct Case {
    const Check* check;
    mla::KvFormat format;
};

std::vector<Case> cases() {
    std::vector<Case> result;
    for (const Check& check : all_checks())
        for (const mla::KvFormat format : kFormats)
            if (format != mla::KvFormat::f32) result.push_back({&check, format});
    return result;
}

class CudaConformance : public testing::TestWithParam<Case> {};
std::string case_name(const testing::TestParamInfo<Case>& which) {
    std::string name(which.param.check->name);
    for (char& c : name)
        if (c == '-') c = '_';
    return name + "_" + std::string(name_of(which.param.format));
}
INSTANTIATE_TEST_SUITE_P(Cuda, CudaConformance, testing::ValuesIn(cases()), case_name);

// Sparse attention is refused by name.
bool of_sparse_attention(std::string_view refusal) {
    return refusal.starts_with("attention over lists of keys on CUDA") ||
           refusal.starts_with("sparse attention, whose indexer chooses keys");
}

TEST_P(CudaConformance, Holds) {
    const auto device = make_cuda_device(Allocation::guarded, test_gpu_limits());
    ASSERT_TRUE(device) << device.error().message;
    const Check& check = *GetParam().check;
    const Support support = ask(**device, GetParam().format);
    for (const std::string& refusal : support.refusals)
        EXPECT_TRUE(of_sparse_attention(refusal)) << "refused: " << refusal;
    if (!applies(check, support)) return;
    CpuDevice oracle_device(4);
    const Outcome outcome = run_check(check, **device, support, oracle_device, 1);
    EXPECT_GT(outcome.cases, 0);
    EXPECT_EQ(outcome.failures, 0)
        << check.title << ", " << outcome.cases << " cases: " << outcome.first_failure;
}

TEST(CudaFormats, F32IsRefusedByName) {
    const auto device = make_cuda_device(Allocation::guarded, test_gpu_limits());
    ASSERT_TRUE(device) << device.error().message;
    const Support support = ask(**device, mla::KvFormat::f32);
    EXPECT_TRUE(support.queries.empty());
    ASSERT_FALSE(support.refusals.empty());
    EXPECT_NE(support.refusals.front().find("f32"), std::string::npos);
}

}  // namespace
}  // namespace espalier::conformance
