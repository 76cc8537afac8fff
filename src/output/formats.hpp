// SPDX-License-Identifier: Apache-2.0
// How models write their reasoning and their calls of functions into their text: one row of a table
// per format. Parser reads texts by it, tool_grammar.hpp holds texts to it.
//
// The markers are those of the published chat templates (tokenizer_config.json or
// chat_template.jinja of deepseek-ai/DeepSeek-V3, -R1 and -V3.1, moonshotai/Kimi-K2-Instruct and
// -Thinking, zai-org/GLM-4.7-Flash, and Kimi's docs/tool_call_guidance.md), compared with the
// parsers of vLLM (vllm/tool_parsers/deepseekv3_tool_parser.py, deepseekv31_tool_parser.py,
// vllm/parser/kimi_k2.py, glm47_moe_tool_parser.py) and SGLang
// (srt/function_call/deepseekv3_detector.py, kimik2_detector.py).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "text/tokenizer.hpp"

namespace espalier::output {

// { key_begin KEY key_end value_begin VALUE value_end }*, a string as it is, other values as JSON.
struct PairFormat {
    std::string_view key_begin, key_end, value_begin, value_end;
};

// section_begin { call_begin before_name NAME after_name ARGUMENTS after_arguments call_end }+
// section_end, the calls with `between` between them; white space between these parts is free where
// a text is read, and as here where a grammar holds it. ARGUMENTS is a JSON object, or pairs. A
// section without markers is its calls.
struct ToolFormat {
    std::string_view name;
    std::string_view section_begin, section_end, call_begin, call_end;
    std::string_view before_name, after_name, after_arguments, between;
    // NAME is "functions.NAME:NUMBER", and the whole of it is the call's id: the template writes
    // ids back into the history.
    bool numbered = false;
    // Empty: a JSON object. Otherwise after_name and after_arguments are empty.
    PairFormat pairs = {};

    bool has_pairs() const { return !pairs.key_begin.empty(); }
    // The marker that the first call of a text begins with.
    std::string_view opening() const { return section_begin.empty() ? call_begin : section_begin; }
};

struct ReasoningFormat {
    std::string_view name;
    std::string_view begin, end;
    // A text begins with its reasoning unless the prompt has closed it. False: only where the
    // prompt has opened it.
    bool always = false;
    // Calls end a reasoning that has no end marker.
    bool ended_by_calls = false;
};

std::span<const ToolFormat> tool_formats();
std::span<const ReasoningFormat> reasoning_formats();

// Words that --tool-format and --reasoning-format take: auto, none and the formats' names.
std::vector<std::string> tool_format_names();
std::vector<std::string> reasoning_format_names();

// The formats of one model; null: it has none, or none that is known here.
struct Formats {
    const ToolFormat* tools = nullptr;
    const ReasoningFormat* reasoning = nullptr;
};

// The model's own by the names above, of the options. auto: what the tokenizer has tokens for and
// the chat template (its source; empty: none) writes; what is not recognised is not guessed.
// A name whose markers are no tokens of the tokenizer is refused where reasoning needs one.
Expected<Formats> formats_of(std::string_view tool_format, std::string_view reasoning_format,
                             std::string_view chat_template, const text::Tokenizer& tokenizer);

// A marker of the format that the tokenizer has no token for; none: it has all.
std::optional<std::string_view> missing_marker(const ToolFormat& format,
                                               const text::Tokenizer& tokenizer);

// A template reads this name, as far as its text shows.
bool template_reads(std::string_view chat_template, std::string_view name);

// The texts of a format that tokenizers have tokens for.
std::vector<std::string_view> markers(const ToolFormat& format);

}  // namespace espalier::output
