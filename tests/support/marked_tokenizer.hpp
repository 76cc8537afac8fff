// SPDX-License-Identifier: Apache-2.0
// A synthetic tokenizer.json whose last ids are added tokens of a test's choice, as published
// tokenizers have the markers of reasoning and calls: not flagged as special.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace espalier::test {

inline std::string marked_tokenizer_json(const std::string& plain,
                                         const std::vector<std::string_view>& markers) {
    auto json = nlohmann::ordered_json::parse(plain);
    auto& vocabulary = json["model"]["vocab"];
    auto& merges = json["model"]["merges"];
    std::int64_t size = 0;
    for (const auto& [token, id] : vocabulary.items())
        size = std::max(size, id.get<std::int64_t>() + 1);
    for (const std::string_view marker : markers) {
        --size;
        for (auto entry = vocabulary.begin(); entry != vocabulary.end(); ++entry)
            if (*entry == size) {
                vocabulary.erase(entry);
                break;
            }
        merges.erase(merges.size() - 1);
        json["added_tokens"].push_back({{"id", size},
                                        {"content", marker},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false},
                                        {"normalized", false},
                                        {"special", false}});
    }
    return json.dump();
}

// All that formats.hpp knows.
inline const std::vector<std::string_view>& all_markers() {
    static const std::vector<std::string_view> markers = {"<think>",
                                                          "</think>",
                                                          "<｜tool▁calls▁begin｜>",
                                                          "<｜tool▁calls▁end｜>",
                                                          "<｜tool▁call▁begin｜>",
                                                          "<｜tool▁call▁end｜>",
                                                          "<｜tool▁sep｜>",
                                                          "<|tool_calls_section_begin|>",
                                                          "<|tool_calls_section_end|>",
                                                          "<|tool_call_begin|>",
                                                          "<|tool_call_end|>",
                                                          "<|tool_call_argument_begin|>",
                                                          "<tool_call>",
                                                          "</tool_call>",
                                                          "<arg_key>",
                                                          "</arg_key>",
                                                          "<arg_value>",
                                                          "</arg_value>"};
    return markers;
}

}  // namespace espalier::test
