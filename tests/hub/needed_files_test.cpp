// SPDX-License-Identifier: Apache-2.0
#include "hub/needed_files.hpp"

#include <gtest/gtest.h>

#include "hub/pull.hpp"

namespace espalier::hub {
namespace {

using Names = std::vector<std::string>;

TEST(NeededFiles, AreTexts) {
    EXPECT_EQ(needed_texts({"README.md", "tokenizer.json", "config.json", "pytorch_model.bin",
                            "../config.json", "sub/config.json", "modeling.py"}),
              (Names{"config.json", "tokenizer.json"}));
}

TEST(NeededFiles, AreTheWeightsThatTheIndexNames) {
    const Names there{"a.safetensors", "b.safetensors", "model.safetensors", "x/c.safetensors"};
    EXPECT_EQ(*needed_weights(there, ""), Names{"model.safetensors"});
    EXPECT_EQ(*needed_weights(there, R"({"weight_map":{"p":"b.safetensors","q":"a.safetensors",
                             "r":"b.safetensors"}})"),
              (Names{"a.safetensors", "b.safetensors"}));
    for (const char* index :
         {"{", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})",
          R"({"weight_map":{"p":7}})", R"({"weight_map":{"p":"../a.safetensors"}})",
          R"({"weight_map":{"p":"/a.safetensors"}})", R"({"weight_map":{"p":"a.bin"}})",
          R"({"weight_map":{"p":"x/c.safetensors"}})", R"({"weight_map":{"p":"z.safetensors"}})"})
        EXPECT_FALSE(needed_weights(there, index)) << index;
}

TEST(NeededFiles, AreNamedWhereThereAreNoWeightsThatWeRead) {
    const auto message = [](const Names& there) {
        return needed_weights(there, "").error().message;
    };
    EXPECT_NE(message({"m-Q4_K.gguf"}).find("ORG/NAME/m-Q4_K.gguf"), std::string::npos);
    EXPECT_NE(message({"pytorch_model.bin"}).find("pytorch_model.bin"), std::string::npos);
    EXPECT_NE(message({}).find("model.safetensors"), std::string::npos);
}

TEST(NeededFiles, OfGgufAreAllParts) {
    const Names there{"m.gguf", "q/n-00001-of-00002.gguf", "q/n-00002-of-00002.gguf",
                      "o-00001-of-00003.gguf"};
    EXPECT_EQ(*needed_gguf(there, "m.gguf"), Names{"m.gguf"});
    EXPECT_EQ(*needed_gguf(there, "q/n-00001-of-00002.gguf"), (Names{there[1], there[2]}));
    EXPECT_NE(needed_gguf(there, "o-00001-of-00003.gguf").error().message.find("part 2 of 3"),
              std::string::npos);
    EXPECT_NE(needed_gguf(there, "none.gguf").error().message.find("m.gguf"), std::string::npos);
}

TEST(WantedModel, HasTwoPartsOrAFileBehindThem) {
    const auto read = [](const char* model) {
        const auto wanted = wanted_model(model);
        if (!wanted) return std::string("none");
        return wanted->repository.organisation + " " + wanted->repository.name + " " +
               wanted->repository.revision + " " + wanted->gguf;
    };
    EXPECT_EQ(read("a/b"), "a b  ");
    EXPECT_EQ(read("a/b@v1/x"), "a b v1/x ");
    EXPECT_EQ(read("a/b/c.gguf"), "a b  c.gguf");
    EXPECT_EQ(read("a/b/q/c.gguf@main"), "a b main q/c.gguf");
    for (const char* model : {"", "a", "a/", "/a", "a/b/", "a/b/c", "a/b/../c.gguf", "../a", "a/..",
                              "a/b@", "a/b@..", "a/b/c.gguf@../x", "a//b.gguf", "a b/c"})
        EXPECT_EQ(read(model), "none") << model;
}

}  // namespace
}  // namespace espalier::hub
