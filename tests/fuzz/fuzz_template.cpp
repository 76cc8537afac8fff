// SPDX-License-Identifier: Apache-2.0
// Compiles arbitrary bytes as a chat template and renders it. The input: a template, "\n--\n", and
// what a message says; without the border the message is fixed. Limits are small, so that every
// input ends soon.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "chat/template.hpp"
#include "fuzz/require.hpp"
#include "text/utf8.hpp"

namespace {

using namespace espalier;
using test::require;

void check(const chat::Rendered& rendered) {
    require(text::valid_utf8_prefix(rendered.text) == rendered.text.size());
    std::size_t at = 0;
    for (const chat::Range range : rendered.content) {
        require(range.begin < range.end && range.end <= rendered.text.size());
        require(range.begin > at || (at == 0 && range.begin == 0));
        at = range.end;
        // Between code points.
        for (const std::size_t border : {range.begin, range.end})
            require(border == rendered.text.size() || (rendered.text[border] & 0xC0) != 0x80);
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const std::size_t border = input.find("\n--\n");
    const std::string message(border == std::string_view::npos ? "Hi <｜User｜>\n"
                                                               : input.substr(border + 4));
    auto compiled = chat::Template::compile(
        input.substr(0, border),
        {.steps = 20'000, .output_bytes = 1 << 18, .touched_bytes = 1 << 22});
    if (!compiled) return 0;
    compiled->define("bos_token", "<s>");
    const nlohmann::json context = {
        {"messages",
         {{{"role", "system"}, {"content", "Be kind."}},
          {{"role", "user"}, {"content", message}},
          {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", {{{"id", "f:0"}}}}},
          {{"role", "user"}, {"content", {{{"type", "text"}, {"text", message}}}}}}},
        {"tools", {{{"type", "function"}, {"function", {{"name", "f"}, {"n", 1.5}}}}}},
        {"add_generation_prompt", true}};
    if (const auto rendered = compiled->render(context, 0)) check(*rendered);
    return 0;
}
