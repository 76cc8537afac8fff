// SPDX-License-Identifier: Apache-2.0
// A regular expression as an automaton whose states are its characters (Glushkov's), and the
// deterministic one of the same texts. A parser that follows an expression in which a text can be
// read in several ways keeps all of them: of (\w?\w*|\w\w)* as many as the text has characters.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "grammar/code_points.hpp"
#include "grammar/regex_tree.hpp"

namespace espalier::grammar {

// State 0 is the start.
struct StateGraph {
    struct Edge {
        CodePointSet set;
        std::size_t to = 0;
    };
    struct State {
        bool accepting = false;
        std::vector<Edge> edges{};
    };
    std::vector<State> states;
};

class RegexAutomaton {
  public:
    // Pairs of characters that follow each other, and looks at characters when states are made:
    // each some tens of milliseconds.
    static constexpr std::size_t kMostPairs = 1 << 17;
    static constexpr std::size_t kMostLooks = 1 << 24;

    // None: more than kMostPairs once repetitions are written out.
    static std::optional<RegexAutomaton> of(const RegexNode& node);

    // True if some text can be read in two ways: it leads to two characters of the expression at
    // once, or to one of them by two ways, as in (a*)*.
    bool is_ambiguous() const;
    // The deterministic automaton. None: more than most_states, or more work than kMostLooks.
    std::optional<StateGraph> determinise(std::size_t most_states) const;
    // This automaton with states of equal edges merged. None: more than most_edges.
    std::optional<StateGraph> states(std::size_t most_edges) const;

  private:
    using Positions = std::vector<std::size_t>;  // ascending
    struct Fragment {
        bool nullable = true;
        Positions first{}, last{};
    };

    bool add(const RegexNode& node, Fragment& made);
    bool add_repetition(const RegexNode& node, Fragment& made);
    // made becomes made · next.
    bool append(Fragment& made, const Fragment& next);
    bool repeat(const Fragment& made);
    // Lets every position of `next` follow every one of `positions`; false: too many pairs.
    bool follow_with(const Positions& positions, const Positions& next);

    std::vector<CodePointSet> sets_;  // of each position
    std::vector<Positions> follow_;
    std::size_t pairs_ = 0;
    bool two_ways_ = false;  // a repetition goes back to where what it repeats went already
    Fragment whole_;
};

}  // namespace espalier::grammar
