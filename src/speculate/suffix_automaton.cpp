// SPDX-License-Identifier: Apache-2.0
// The online construction of Blumer et al., with edges in one hash table because the alphabet is a
// vocabulary of 10^5 tokens.
#include "speculate/suffix_automaton.hpp"

#include <bit>
#include <limits>

#include "base/check.hpp"

namespace espalier::speculate {

SuffixAutomaton::SuffixAutomaton() { clear(); }

void SuffixAutomaton::clear() {
    tokens_ = 0;
    last_ = counted_ = kEmpty;
    counted_length_ = 0;
    states_.clear();
    edges_.clear();
    table_.assign(64, kNone);
    add_state(0, kNone, 0);
}

// Ordinary text needs about 1.5 states and 2 edges per token.
void SuffixAutomaton::reserve(std::int64_t tokens) {
    const auto n = static_cast<std::size_t>(tokens);
    states_.reserve(n + n / 2 + 2);
    edges_.reserve(2 * n + 2);
    if (const std::size_t places = std::bit_ceil(2 * n + n / 2 + 64); places > table_.size())
        grow_table(places);
}

SuffixAutomaton::State SuffixAutomaton::add_state(std::int32_t length, State link,
                                                  std::int32_t count) {
    states_.push_back({length, link, kNone, count});
    return static_cast<State>(states_.size()) - 1;
}

std::size_t SuffixAutomaton::home(State from, TokenId token) const {
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(from)) << 32 |
                              static_cast<std::uint32_t>(token);
    const std::uint64_t mixed = (key ^ key >> 29) * 0x9e3779b97f4a7c15ull;
    return static_cast<std::size_t>(mixed >> 32) & (table_.size() - 1);
}

std::int32_t SuffixAutomaton::find_edge(State from, TokenId token) const {
    for (std::size_t i = home(from, token); table_[i] != kNone; i = (i + 1) & (table_.size() - 1)) {
        const Edge& candidate = edge(table_[i]);
        if (candidate.from == from && candidate.token == token) return table_[i];
    }
    return kNone;
}

void SuffixAutomaton::place_edge(std::int32_t index) {
    std::size_t i = home(edge(index).from, edge(index).token);
    while (table_[i] != kNone) i = (i + 1) & (table_.size() - 1);
    table_[i] = index;
}

void SuffixAutomaton::grow_table(std::size_t places) {
    table_.assign(places, kNone);
    for (std::size_t e = 0; e < edges_.size(); ++e) place_edge(static_cast<std::int32_t>(e));
}

std::int32_t SuffixAutomaton::new_edge(State from, TokenId token, State to, std::int32_t next) {
    if (4 * (edges_.size() + 1) > 3 * table_.size()) grow_table(2 * table_.size());
    const auto index = static_cast<std::int32_t>(edges_.size());
    edges_.push_back({from, token, to, next});
    place_edge(index);
    return index;
}

SuffixAutomaton::State SuffixAutomaton::follow(State state, TokenId token) const {
    const std::int32_t found = find_edge(state, token);
    return found == kNone ? kNone : edge(found).target;
}

std::int32_t SuffixAutomaton::count(State state) const {
    return at(state).count > 0 ? at(state).count : 1;
}

// Splits off the strings of `original` up to parent + token: they now also end here.
SuffixAutomaton::State SuffixAutomaton::clone(State parent, TokenId token, State original) {
    const State copy = add_state(at(parent).length + 1, at(original).link, at(original).count);
    std::int32_t last_copied = kNone;
    for (std::int32_t e = at(original).first_edge; e != kNone; e = edge(e).next) {
        const std::int32_t copied = new_edge(copy, edge(e).token, edge(e).target, kNone);
        std::int32_t& chain = last_copied == kNone
                                  ? at(copy).first_edge
                                  : edges_[static_cast<std::size_t>(last_copied)].next;
        chain = last_copied = copied;
    }
    at(original).link = copy;
    for (State p = parent; p != kNone; p = at(p).link) {
        const std::int32_t e = find_edge(p, token);
        if (e == kNone || edge(e).target != original) break;
        edges_[static_cast<std::size_t>(e)].target = copy;
    }
    return copy;
}

void SuffixAutomaton::append(TokenId token) {
    CHECK(tokens_ < std::numeric_limits<std::int32_t>::max() / 4, "{} tokens in one automaton",
          tokens_);
    ++tokens_;
    const State added = add_state(at(last_).length + 1, kEmpty, 0);
    State p = last_;
    std::int32_t e = kNone;
    for (; p != kNone && (e = find_edge(p, token)) == kNone; p = at(p).link)
        at(p).first_edge = new_edge(p, token, added, at(p).first_edge);
    if (p != kNone) {
        const State target = edge(e).target;
        at(added).link = at(target).length == at(p).length + 1 ? target : clone(p, token, target);
    }
    last_ = added;
    count_suffixes(token);
}

void SuffixAutomaton::count_suffixes(TokenId token) {
    // If the counted suffix was among strings that a clone took over in this append, its old state
    // still leads to the same place: both have the same edges.
    counted_ = follow(counted_, token);
    ++counted_length_;
    if (counted_length_ > kCountedLength) {
        counted_length_ = kCountedLength;
        while (at(at(counted_).link).length >= kCountedLength) counted_ = at(counted_).link;
    }
    for (State s = counted_; s != kEmpty; s = at(s).link) ++at(s).count;
}

std::int64_t SuffixAutomaton::bytes() const {
    return static_cast<std::int64_t>(states_.capacity() * sizeof(Node) +
                                     edges_.capacity() * sizeof(Edge) +
                                     table_.capacity() * sizeof(std::int32_t));
}

}  // namespace espalier::speculate
