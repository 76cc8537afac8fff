// SPDX-License-Identifier: Apache-2.0
#include "server/api/parts_reply.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace espalier::server {

std::string json_text(const nlohmann::ordered_json& json) {
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

PartsReply::PartsReply(PartsReplyOptions options)
    : options_(std::move(options)), parser_(options_.parser) {}

std::string PartsReply::own_digits() const {
    return options_.id.substr(options_.id.find_last_of("-_") + 1);
}

bool PartsReply::has_calls() const {
    return std::ranges::any_of(parts_,
                               [](const Part& part) { return part.kind == Part::Kind::call; });
}

void PartsReply::add(std::size_t /*prompt*/, const engine::Updates& updates, std::string& out) {
    const engine::ChoiceUpdate& update = updates.choices.front();
    const accept::Emission& emission = update.emission;
    if (ended_ || (emission.tokens.empty() && emission.text.empty() && !update.ended)) return;
    usage_ = update.usage;
    cached_tokens_ = update.cached_tokens;
    std::vector<output::Event> events;
    if (options_.parser.parses())
        parser_.push(emission.text, events);
    else if (!emission.text.empty())
        events.push_back({.kind = output::Event::Kind::content, .text = emission.text});
    if (update.ended) {
        ended_ = true;
        finish_ = update.finish;
        if (options_.parser.parses()) parser_.finish(events);
        if (!ended_by_text(finish_.reason)) failure_ = failure_of(update);
    }
    if (failure_) return;
    if (options_.stream && !std::exchange(opened_, true)) opened(out);
    for (const output::Event& event : events) add_event(event, out);
}

void PartsReply::add_event(const output::Event& event, std::string& out) {
    using Kind = output::Event::Kind;
    const auto kind = event.kind == Kind::reasoning ? Part::Kind::reasoning
                      : event.kind == Kind::content ? Part::Kind::content
                                                    : Part::Kind::call;
    if (event.kind == Kind::call_begin || !open_ || parts_.back().kind != kind) {
        close_part(out);
        Part part{.kind = kind};
        if (event.kind == Kind::call_begin) {
            part.name = event.text;
            part.id = event.id.empty() ? fmt::format("{}{}{:02x}", options_.call_prefix,
                                                     own_digits(), parts_.size())
                                       : event.id;
        }
        parts_.push_back(std::move(part));
        open_ = true;
        if (options_.stream) part_began(out);
        if (event.kind == Kind::call_begin) return;
    }
    parts_.back().text += event.text;
    if (options_.stream) part_grew(event.text, out);
}

void PartsReply::close_part(std::string& out) {
    if (std::exchange(open_, false) && options_.stream) part_ended(out);
}

}  // namespace espalier::server
