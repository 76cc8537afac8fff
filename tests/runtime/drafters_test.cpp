// SPDX-License-Identifier: Apache-2.0
// Drafters that auto chooses, and what is told of those that it leaves out.
#include "runtime/drafters.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "checkpoint/synthetic.hpp"
#include "grammar/compiler.hpp"
#include "support/temporary_directory.hpp"

namespace espalier::runtime {
namespace {

// A tiny model of random weights.
struct WrittenModel {
    TemporaryDirectory directory;
    std::string path = (directory.path() / "model").string();

    explicit WrittenModel(const char* preset) {
        const auto synthetic = checkpoint::synthetic_preset(preset);
        ThreadPool pool(1);
        if (!synthetic || !checkpoint::write_synthetic(*synthetic, path, pool))
            throw std::runtime_error("no model could be written");
    }
};

std::vector<std::string> others(const char* preset, const std::vector<std::string>& wanted) {
    const WrittenModel written(preset);
    const auto files = ModelFiles::open(written.path);
    const auto chosen = choose_drafters(wanted, *files);
    std::vector<std::string> told = left_out(*chosen, *files);
    if (!grammar::available()) std::erase(told, "grammar (this build has no grammars)");
    return told;
}

using Told = std::vector<std::string>;

TEST(Drafters, WhatIsLeftOutIsToldWithWhatItWouldTake) {
    const std::string no_draft = "eagle3 (no draft is named by --draft)";
    EXPECT_EQ(others("tiny-v3", {"auto"}), Told({no_draft}));
    EXPECT_EQ(others("tiny-v2", {"auto"}), Told({"mtp (the model has no such layer)", no_draft}));
    const Told asked = others("tiny-v3", {"ngram"});
    EXPECT_EQ(asked[0], "mtp (not asked for)");
    EXPECT_EQ(asked[1], no_draft);
    const Told off = others("tiny-v3", {"off"});
    EXPECT_EQ(off[0], "ngram (not asked for)");
}

}  // namespace
}  // namespace espalier::runtime
