// SPDX-License-Identifier: Apache-2.0
// Arbitrary text through the parser of reasoning and calls. The input's first byte picks the
// format, the second how the text is cut; what comes out is the same in one piece, nothing is told
// that the text does not have, and little is held.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/require.hpp"
#include "output/parser.hpp"

namespace {

using namespace espalier::output;
using espalier::test::require;

// Each event's kind and text, pieces of one kind joined.
std::string told(const ParserOptions& options, std::string_view text, std::size_t piece) {
    Parser parser(options);
    std::vector<Event> events;
    for (; !text.empty(); text.remove_prefix(std::min(piece, text.size()))) {
        parser.push(text.substr(0, piece), events);
        require(parser.held_bytes() <= kMaxHeldBytes);
    }
    parser.finish(events);
    require(parser.held_bytes() == 0);
    std::string all;
    Event::Kind last = Event::Kind::call_begin;
    for (const Event& event : events) {
        if (event.kind == Event::Kind::call_begin || event.kind != last)
            all += static_cast<char>('0' + static_cast<int>(event.kind));
        last = event.kind;
        all += event.text + event.id;
    }
    return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    if (size < 2) return 0;
    ParserOptions options;
    options.functions = {"f", "get_weather"};
    options.types["f"] = {{"s", kStringValue}, {"n", kNumberValue}, {"o", kObjectValue}};
    if (data[0] % 5 < tool_formats().size()) options.tools = &tool_formats()[data[0] % 5];
    options.reasoning = &reasoning_formats()[data[0] / 5 % reasoning_formats().size()];
    options.reasoning_open = data[0] >= 128;
    const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
    const std::string whole = told(options, text, text.size() + 1);
    require(whole == told(options, text, 1 + data[1] % 64));
    require(whole == told(options, text, 1));
    // Pairs become JSON: a control character takes six bytes there.
    require(whole.size() <= 6 * text.size() + 2);
    return 0;
}
