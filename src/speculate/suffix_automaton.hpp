// SPDX-License-Identifier: Apache-2.0
// A suffix automaton over tokens that grows by one token at a time, with occurrence counts. Pure.
// Every state stands for the substrings that end at the same set of places; the suffix link of the
// newest state is the longest suffix of the text that has occurred before. That is the whole match
// of an n-gram drafter, found in O(1).
//
// Cost: appending is amortised O(1) steps plus at most kCountedLength count updates; 0.1 to 0.5 µs
// a token measured. Memory: at most 2n states of 16 bytes, 3n edges of 16, and a hash table of
// 4-byte places between 3/8 and 3/4 full: at most 112 bytes per token, 192 with the slack of
// growing vectors; 60 to 130 measured.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "speculate/tree.hpp"

namespace espalier::speculate {

class SuffixAutomaton {
  public:
    using State = std::int32_t;
    static constexpr State kNone = -1;
    static constexpr State kEmpty = 0;  // the empty string
    // Occurrences are counted for strings up to this length. Beyond it counts are lower bounds: a
    // repetition that long hardly ever branches, and a text of one repeated token would otherwise
    // cost O(n) updates per token.
    static constexpr std::int32_t kCountedLength = 32;

    struct Edge {
        State from;
        TokenId token;
        State target;
        std::int32_t next;  // the state's previous edge, or kNone
    };

    SuffixAutomaton();
    void reserve(std::int64_t tokens);
    void clear();
    void append(TokenId token);

    std::int64_t tokens() const { return tokens_; }
    // The whole text.
    State text() const { return last_; }
    // The longest proper suffix of the state's strings that ends in more places; kNone for kEmpty.
    State link(State state) const { return at(state).link; }
    // Length of the longest string of the state.
    std::int32_t length(State state) const { return at(state).length; }
    // Occurrences of the state's strings (at least, where longer than kCountedLength), ≥ 1.
    std::int32_t count(State state) const;
    // State behind this one and the token, or kNone: the string followed by it never occurred.
    State follow(State state, TokenId token) const;
    // Newest edge first: for (e = first_edge(s); e != kNone; e = edge(e).next) …
    std::int32_t first_edge(State state) const { return at(state).first_edge; }
    const Edge& edge(std::int32_t index) const { return edges_[static_cast<std::size_t>(index)]; }

    std::int64_t bytes() const;

  private:
    struct Node {
        std::int32_t length;
        State link;
        std::int32_t first_edge;
        std::int32_t count;
    };

    const Node& at(State state) const { return states_[static_cast<std::size_t>(state)]; }
    Node& at(State state) { return states_[static_cast<std::size_t>(state)]; }
    State add_state(std::int32_t length, State link, std::int32_t count);
    std::int32_t new_edge(State from, TokenId token, State to, std::int32_t next);
    std::int32_t find_edge(State from, TokenId token) const;
    std::size_t home(State from, TokenId token) const;
    void grow_table(std::size_t places);
    void place_edge(std::int32_t index);
    State clone(State parent, TokenId token, State original);
    void count_suffixes(TokenId token);

    std::int64_t tokens_ = 0;
    State last_ = kEmpty;
    // The suffix of at most kCountedLength tokens: its state and its length.
    State counted_ = kEmpty;
    std::int32_t counted_length_ = 0;
    std::vector<Node> states_;
    std::vector<Edge> edges_;
    std::vector<std::int32_t> table_;  // open addressing: edge index or kNone
};

}  // namespace espalier::speculate
