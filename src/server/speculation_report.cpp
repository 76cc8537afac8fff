// SPDX-License-Identifier: Apache-2.0
#include "server/speculation_report.hpp"

#include <algorithm>
#include <utility>

namespace espalier::server {
namespace {

std::string source_of(const DraftOrigin& origin, const std::vector<std::string>& drafters) {
    return origin.drafted() && origin.drafter < drafters.size() ? drafters[origin.drafter]
                                                                : "target";
}

std::size_t next_code_point(std::string_view text, std::size_t at) {
    while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) ++at;
    return at;
}

}  // namespace

OrderedJson text_sources(std::string_view text, std::int64_t before,
                         std::span<const accept::CommittedToken> tokens,
                         const std::vector<std::string>& drafters) {
    OrderedJson list = OrderedJson::array();
    const auto place = [&](std::size_t token) {
        if (token >= tokens.size()) return text.size();
        const std::int64_t offset = tokens[token].text_offset - before;
        const auto size = static_cast<std::int64_t>(text.size());
        return next_code_point(text,
                               static_cast<std::size_t>(std::clamp<std::int64_t>(offset, 0, size)));
    };
    std::size_t begin = 0;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const std::size_t end = place(i + 1);
        if (end <= begin) continue;
        list.push_back({{"text", std::string(text.substr(begin, end - begin))},
                        {"source", source_of(tokens[i].origin, drafters)}});
        begin = end;
    }
    if (begin < text.size())
        list.push_back({{"text", std::string(text.substr(begin))}, {"source", "target"}});
    return list;
}

OrderedJson tree_report(const engine::VerifiedTree& tree, const text::Tokenizer& tokenizer,
                        const std::vector<std::string>& drafters) {
    OrderedJson texts = OrderedJson::array();
    OrderedJson sources = OrderedJson::array();
    for (std::size_t node = 0; node < tree.tokens.size(); ++node) {
        texts.push_back(token_text(tokenizer, tree.tokens[node]));
        sources.push_back(node == 0 ? OrderedJson()
                                    : OrderedJson(source_of(tree.origins[node], drafters)));
    }
    return {{"texts", std::move(texts)},
            {"parents", tree.parents},
            {"sources", std::move(sources)},
            {"path", tree.path}};
}

OrderedJson speculation_totals(const accept::Usage& usage, const std::vector<std::string>& drafters,
                               const std::vector<std::string_view>& states) {
    OrderedJson depths = OrderedJson::array();
    std::size_t deepest = 0;
    for (std::size_t depth = 1; depth < usage.accepted_at_depth.size(); ++depth)
        if (usage.accepted_at_depth[depth] > 0) deepest = depth;
    for (std::size_t depth = 1; depth <= deepest; ++depth)
        depths.push_back(usage.accepted_at_depth[depth]);
    OrderedJson by_drafter = OrderedJson::object();
    for (std::size_t i = 0; i < drafters.size() && i < usage.drafted_from.size(); ++i) {
        OrderedJson& one = by_drafter[drafters[i]];
        one = {{"drafted", usage.drafted_from[i]}, {"accepted", usage.accepted_from[i]}};
        if (i < states.size()) one["state"] = states[i];
    }
    return {{"steps", usage.steps},
            {"drafted", usage.drafted},
            {"accepted", usage.accepted},
            {"accepted_at_depth", std::move(depths)},
            {"drafters", std::move(by_drafter)}};
}

}  // namespace espalier::server
