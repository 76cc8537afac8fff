// SPDX-License-Identifier: Apache-2.0
// Random weights made on the GPU are those of make-model, bit for bit, in every stored type.
#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/synthetic.hpp"
#include "support/temporary_directory.hpp"

namespace {

using namespace espalier;
using namespace espalier::checkpoint;

class GpuWeights : public testing::TestWithParam<std::string_view> {};

TEST_P(GpuWeights, AreThoseOfAWrittenModel) {
    for (const std::string_view preset : {"tiny-v3", "tiny-glm"}) {
        SyntheticModel model = synthetic_preset(preset).value();
        model.seed = 7;
        ASSERT_TRUE(store_as(GetParam(), model));
        const TemporaryDirectory directory;
        ThreadPool pool(2);
        ASSERT_TRUE(write_synthetic(model, directory.path() / "written", pool));
        const auto written = Checkpoint::open((directory.path() / "written").string());
        const auto made = synthetic_on_gpu(model, directory.path() / "made");
        ASSERT_TRUE(written) << written.error().message;
        ASSERT_TRUE(made) << made.error().message;
        ASSERT_EQ(written->names(), made->names());
        for (const std::string& name : written->names()) {
            const Tensor one = *written->stored(name), other = *made->stored(name);
            EXPECT_EQ(one.type, other.type) << name;
            EXPECT_EQ(one.shape, other.shape) << name;
            EXPECT_TRUE(std::ranges::equal(one.bytes, other.bytes)) << name;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GpuWeights, testing::ValuesIn(synthetic_dtype_names()),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
