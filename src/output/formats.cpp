// SPDX-License-Identifier: Apache-2.0
#include "output/formats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace espalier::output {
namespace {

constexpr ToolFormat kTools[] = {
    {.name = "deepseek_v3",
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .before_name = "function<｜tool▁sep｜>",
     .after_name = "\n```json\n",
     .after_arguments = "\n```",
     .between = "\n"},
    {.name = "deepseek_v31",
     .section_begin = "<｜tool▁calls▁begin｜>",
     .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>",
     .call_end = "<｜tool▁call▁end｜>",
     .before_name = "",
     .after_name = "<｜tool▁sep｜>",
     .after_arguments = "",
     .between = ""},
    {.name = "kimi_k2",
     .section_begin = "<|tool_calls_section_begin|>",
     .section_end = "<|tool_calls_section_end|>",
     .call_begin = "<|tool_call_begin|>",
     .call_end = "<|tool_call_end|>",
     .before_name = "",
     .after_name = "<|tool_call_argument_begin|>",
     .after_arguments = "",
     .between = "",
     .numbered = true},
    {.name = "glm47",
     .section_begin = "",
     .section_end = "",
     .call_begin = "<tool_call>",
     .call_end = "</tool_call>",
     .before_name = "",
     .after_name = "",
     .after_arguments = "",
     .between = "",
     .pairs = {.key_begin = "<arg_key>",
               .key_end = "</arg_key>",
               .value_begin = "<arg_value>",
               .value_end = "</arg_value>"}},
};

constexpr ReasoningFormat kReasoning[] = {
    {.name = "deepseek_r1", .begin = "<think>", .end = "</think>", .always = true},
    {.name = "deepseek_v31", .begin = "<think>", .end = "</think>"},
    {.name = "kimi_k2",
     .begin = "<think>",
     .end = "</think>",
     .always = true,
     .ended_by_calls = true},
};

// The one marker inside a call's head, by which the two forms of DeepSeek share it.
constexpr std::string_view kDeepseekSeparator = "<｜tool▁sep｜>";

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// The two forms of DeepSeek have the same markers: V3 puts the arguments into a block of code.
const ToolFormat* recognised_tools(std::string_view source, const text::Tokenizer& tokenizer) {
    const bool has_block = contains(source, "```json");
    for (const ToolFormat& format : kTools)
        if (contains(source, format.section_begin) && contains(source, format.call_begin) &&
            contains(source, format.pairs.key_begin) && !missing_marker(format, tokenizer) &&
            (format.numbered || has_block == !format.after_arguments.empty()))
            return &format;
    return nullptr;
}

const ReasoningFormat* recognised_reasoning(std::string_view source,
                                            const text::Tokenizer& tokenizer,
                                            const ToolFormat* tools) {
    if (!contains(source, "</think>") || !tokenizer.id_of("</think>")) return nullptr;
    const bool asked =
        template_reads(source, "thinking") || template_reads(source, "enable_thinking");
    const bool by_calls = !asked && tools != nullptr && tools->numbered;
    for (const ReasoningFormat& format : kReasoning)
        if (format.always != asked && format.ended_by_calls == by_calls) return &format;
    return nullptr;
}

template <typename Format>
std::vector<std::string> names_of(std::span<const Format> formats) {
    std::vector<std::string> names = {"auto"};
    for (const Format& format : formats) names.emplace_back(format.name);
    names.emplace_back("none");
    return names;
}

template <typename Format>
const Format* named(std::span<const Format> formats, std::string_view name) {
    const auto found = std::ranges::find(formats, name, &Format::name);
    return found == formats.end() ? nullptr : &*found;
}

}  // namespace

std::span<const ToolFormat> tool_formats() { return kTools; }
std::span<const ReasoningFormat> reasoning_formats() { return kReasoning; }
std::vector<std::string> tool_format_names() { return names_of(tool_formats()); }
std::vector<std::string> reasoning_format_names() { return names_of(reasoning_formats()); }

std::vector<std::string_view> markers(const ToolFormat& format) {
    if (format.has_pairs())
        return {format.call_begin,    format.call_end,          format.pairs.key_begin,
                format.pairs.key_end, format.pairs.value_begin, format.pairs.value_end};
    const std::string_view inner =
        contains(format.before_name, kDeepseekSeparator) ? kDeepseekSeparator : format.after_name;
    return {format.section_begin, format.section_end, format.call_begin, format.call_end, inner};
}

std::optional<std::string_view> missing_marker(const ToolFormat& format,
                                               const text::Tokenizer& tokenizer) {
    for (const std::string_view marker : markers(format))
        if (!tokenizer.id_of(marker)) return marker;
    return std::nullopt;
}

bool template_reads(std::string_view chat_template, std::string_view name) {
    const auto is_word = [](char c) {
        return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    };
    for (std::size_t at = chat_template.find(name); at != std::string_view::npos;
         at = chat_template.find(name, at + 1)) {
        const std::size_t end = at + name.size();
        if ((at == 0 || !is_word(chat_template[at - 1])) &&
            (end == chat_template.size() || !is_word(chat_template[end])))
            return true;
    }
    return false;
}

Expected<Formats> formats_of(std::string_view tool_format, std::string_view reasoning_format,
                             std::string_view chat_template, const text::Tokenizer& tokenizer) {
    Formats formats;
    formats.tools = tool_format == "auto" ? recognised_tools(chat_template, tokenizer)
                                          : named(tool_formats(), tool_format);
    formats.reasoning = reasoning_format == "auto"
                            ? recognised_reasoning(chat_template, tokenizer, formats.tools)
                            : named(reasoning_formats(), reasoning_format);
    if (formats.reasoning != nullptr && !tokenizer.id_of(formats.reasoning->end))
        return fail_field(ErrorKind::invalid, "reasoning_format",
                          "{}, but the tokenizer has no token {}", reasoning_format,
                          formats.reasoning->end);
    return formats;
}

}  // namespace espalier::output
