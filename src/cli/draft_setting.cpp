// SPDX-License-Identifier: Apache-2.0
#include "cli/draft_setting.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

namespace espalier::cli {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t end = std::min(text.find(separator, begin), text.size());
        parts.emplace_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

// Text before the mark; the rest goes on after it. Without the mark everything, and no rest.
std::string_view take_until(std::string_view& rest, char mark) {
    const std::size_t end = rest.find(mark);
    const std::string_view part = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    return part;
}

bool read_number(std::string_view text, std::int32_t& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value > 0;
}

}  // namespace

Expected<DraftSetting> DraftSetting::parse(const std::string& text) {
    const auto refuse = [&] {
        return fail(ErrorKind::invalid,
                    "--speculate {}: not NAMES[:DEPTH[xWIDTH][/NODES]][@plain|@coupled], as in "
                    "mtp+ngram or eagle3:4x4/8@coupled",
                    text);
    };
    DraftSetting setting;
    std::string_view rest = text;
    std::string_view shaped = take_until(rest, '@');
    if (rest == "plain")
        setting.coupling = engine::Coupling::plain;
    else if (rest == "coupled")
        setting.coupling = engine::Coupling::coupled;
    else if (shaped.size() != text.size())
        return refuse();
    const std::size_t names = shaped.find(':');
    setting.drafters = split(shaped.substr(0, names), '+');
    for (const std::string& name : setting.drafters)
        if (name.empty()) return refuse();
    if (names == std::string_view::npos) return setting;

    std::string_view nodes = shaped.substr(names + 1);
    const bool has_nodes = nodes.find('/') != std::string_view::npos;
    std::string_view width = take_until(nodes, '/');
    const bool has_width = width.find('x') != std::string_view::npos;
    const std::string_view depth = take_until(width, 'x');
    if (setting.off() || !read_number(depth, setting.depth) ||
        (has_width && !read_number(width, setting.width)) ||
        (has_nodes && !read_number(nodes, setting.nodes)))
        return refuse();
    return setting;
}

void DraftSetting::apply_to(engine::Request& request) const {
    request.draft_depth = depth;
    request.draft_width = width;
    request.draft_nodes = nodes;
}

}  // namespace espalier::cli
