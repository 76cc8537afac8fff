// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex_automaton.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

namespace espalier::grammar {
namespace {

void unite(std::vector<std::size_t>& into, const std::vector<std::size_t>& other) {
    std::vector<std::size_t> all;
    std::ranges::set_union(into, other, std::back_inserter(all));
    into = std::move(all);
}

// Bounds where a set of positions begins or ends a range, ascending: between two of these all
// characters lead to the same positions.
std::vector<std::uint32_t> bounds_of(const std::vector<CodePointSet>& sets) {
    std::vector<std::uint32_t> bounds;
    for (const CodePointSet& set : sets)
        for (const CodePointRange& range : set.ranges()) {
            bounds.push_back(range.first);
            bounds.push_back(range.last + 1);
        }
    std::ranges::sort(bounds);
    bounds.erase(std::unique(bounds.begin(), bounds.end()), bounds.end());
    return bounds;
}

bool contains(const CodePointSet& set, std::uint32_t code_point) {
    return std::ranges::any_of(set.ranges(), [code_point](const CodePointRange& range) {
        return range.first <= code_point && code_point <= range.last;
    });
}

}  // namespace

std::optional<RegexAutomaton> RegexAutomaton::of(const RegexNode& node) {
    RegexAutomaton made;
    if (!made.add(node, made.whole_)) return std::nullopt;
    return made;
}

bool RegexAutomaton::add(const RegexNode& node, Fragment& made) {
    made = Fragment{};
    switch (node.kind) {
        case RegexNode::Kind::empty:
            return true;
        case RegexNode::Kind::characters:
            made = {false, {sets_.size()}, {sets_.size()}};
            sets_.push_back(node.set);
            follow_.emplace_back();
            return true;
        case RegexNode::Kind::sequence:
            for (const RegexNode& child : node.children) {
                Fragment next;
                if (!add(child, next) || !append(made, next)) return false;
            }
            return true;
        case RegexNode::Kind::choice:
            made.nullable = false;
            for (const RegexNode& child : node.children) {
                Fragment one;
                if (!add(child, one)) return false;
                made.nullable = made.nullable || one.nullable;
                unite(made.first, one.first);
                unite(made.last, one.last);
            }
            return true;
        case RegexNode::Kind::repetition:
            return add_repetition(node, made);
    }
    return false;
}

// r{2,4} is r r (r (r)?)?, and r{2,} is r r+.
bool RegexAutomaton::add_repetition(const RegexNode& node, Fragment& made) {
    const std::int64_t copies = node.most.value_or(std::max<std::int64_t>(node.least, 1));
    Positions ends;
    for (std::int64_t i = 0; i < copies; ++i) {
        Fragment one;
        if (!add(node.children[0], one)) return false;
        if (!node.most && i + 1 == copies && !repeat(one)) return false;
        two_ways_ = two_ways_ || (one.nullable && (copies > 1 || node.least == 0));
        if (!append(made, one)) return false;
        if (i + 1 >= node.least) unite(ends, made.last);
    }
    made.last = std::move(ends);
    made.nullable = made.nullable || node.least == 0;
    return true;
}

bool RegexAutomaton::append(Fragment& made, const Fragment& next) {
    if (!follow_with(made.last, next.first)) return false;
    if (made.nullable) unite(made.first, next.first);
    if (next.nullable)
        unite(made.last, next.last);
    else
        made.last = next.last;
    made.nullable = made.nullable && next.nullable;
    return true;
}

bool RegexAutomaton::repeat(const Fragment& made) {
    two_ways_ = two_ways_ || made.nullable;
    for (const std::size_t position : made.last) {
        Positions twice;
        std::ranges::set_intersection(follow_[position], made.first, std::back_inserter(twice));
        two_ways_ = two_ways_ || !twice.empty();
    }
    return follow_with(made.last, made.first);
}

bool RegexAutomaton::follow_with(const Positions& positions, const Positions& next) {
    for (const std::size_t position : positions) {
        pairs_ += next.size();
        if (pairs_ > kMostPairs) return false;
        unite(follow_[position], next);
    }
    return true;
}

bool RegexAutomaton::is_ambiguous() const {
    const auto apart = [this](const Positions& positions) {
        CodePointSet seen;
        for (const std::size_t position : positions)
            for (const CodePointRange& range : sets_[position].ranges()) {
                const CodePointSet one{range};
                const auto left = one.without(seen).ranges();
                if (left.size() != 1 || left[0] != range) return false;
                seen.add(range);
            }
        return true;
    };
    return two_ways_ || !apart(whole_.first) || !std::ranges::all_of(follow_, apart);
}

std::optional<StateGraph> RegexAutomaton::determinise(std::size_t most_states) const {
    const std::vector<std::uint32_t> bounds = bounds_of(sets_);
    StateGraph dfa;
    std::map<Positions, std::size_t> known;  // but for the start, which is no position's
    std::vector<Positions> pending;          // positions that state i stands on
    std::size_t looks = 0;
    dfa.states.push_back({.accepting = whole_.nullable});
    pending.emplace_back();
    for (std::size_t state = 0; state < pending.size(); ++state) {
        Positions next = state == 0 ? whole_.first : Positions{};
        for (const std::size_t position : pending[state]) unite(next, follow_[position]);
        looks += next.size() * bounds.size();
        if (looks > kMostLooks) return std::nullopt;
        std::map<std::size_t, CodePointSet> edges;
        for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
            Positions reached;
            std::ranges::copy_if(next, std::back_inserter(reached), [&](std::size_t position) {
                return contains(sets_[position], bounds[i]);
            });
            if (reached.empty()) continue;
            const auto [found, is_new] = known.emplace(reached, dfa.states.size());
            if (is_new) {
                if (dfa.states.size() == most_states) return std::nullopt;
                const bool accepting = std::ranges::any_of(reached, [this](std::size_t position) {
                    return std::ranges::binary_search(whole_.last, position);
                });
                dfa.states.push_back({.accepting = accepting});
                pending.push_back(std::move(reached));
            }
            edges[found->second].add(CodePointRange{bounds[i], bounds[i + 1] - 1});
        }
        for (auto& [to, set] : edges) dfa.states[state].edges.push_back({std::move(set), to});
    }
    return dfa;
}

std::optional<StateGraph> RegexAutomaton::states(std::size_t most_edges) const {
    StateGraph graph;
    graph.states.push_back({.accepting = whole_.nullable});
    std::map<std::pair<Positions, bool>, std::size_t> known;  // by what follows
    std::vector<std::size_t> state_of(sets_.size());
    std::vector<Positions> following{whole_.first};
    for (std::size_t position = 0; position < sets_.size(); ++position) {
        const bool accepting = std::ranges::binary_search(whole_.last, position);
        const auto [found, is_new] =
            known.emplace(std::pair(follow_[position], accepting), graph.states.size());
        state_of[position] = found->second;
        if (!is_new) continue;
        graph.states.push_back({.accepting = accepting});
        following.push_back(follow_[position]);
    }
    std::size_t edges = 0;
    for (std::size_t state = 0; state < following.size(); ++state) {
        std::map<std::size_t, CodePointSet> sets;
        for (const std::size_t next : following[state]) sets[state_of[next]].add(sets_[next]);
        edges += sets.size();
        if (edges > most_edges) return std::nullopt;
        for (auto& [to, set] : sets) graph.states[state].edges.push_back({std::move(set), to});
    }
    return graph;
}

}  // namespace espalier::grammar
