// SPDX-License-Identifier: Apache-2.0
// What may be drawn at each place of a request's text: its reasoning and its grammar. The phase
// (reasoning or answer), the count of reasoning tokens and where the grammar stands are functions
// of the tokens on the path, so the same class stands at the committed text and goes down a draft
// tree and up again. One per choice, on the engine's thread.
//
// A text with a reasoning rule begins in its reasoning and leaves it with the first end marker.
// There anything may be drawn, but an eos where a grammar follows (it would end the text without an
// answer), until the budget is used up: then only the end marker is left. The grammar begins behind
// the marker, or with the text where there is no reasoning.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accept/output_options.hpp"
#include "accept/walk.hpp"
#include "base/limits.hpp"
#include "grammar/compiler.hpp"
#include "grammar/matcher.hpp"

namespace espalier::accept {

class Constraint {
  public:
    // Tokens that may be drawn at a place.
    enum class Legal : std::uint8_t {
        anything,
        no_eos,   // anything but the ids of eos()
        masked,   // what fill_mask() says
        nothing,  // the text has ended here
    };

    // grammar: null: none. eos: ids that end an output; they outlive this.
    Constraint(std::shared_ptr<const grammar::CompiledGrammar> grammar, ReasoningRule rule,
               std::span<const std::int32_t> eos, std::int64_t vocabulary);

    // Down to a child that holds this token, at most kMaxNodes below the committed text. False: it
    // is not legal here, and nothing has changed.
    [[nodiscard]] bool descend(TokenId token);
    void ascend();  // takes the last one back

    // The place's state now:
    Legal legal() const;
    void fill_mask(std::span<std::uint32_t> words);  // where legal() is masked
    std::span<const std::int32_t> eos() const { return eos_; }
    bool reasoning() const { return place_.reasoning; }
    std::int64_t reasoning_tokens() const { return place_.reasoning_tokens; }
    // The beginning of every continuation: tokens (an end marker that is due), then text.
    struct Forced {
        std::optional<TokenId> token;
        std::string text;
    };
    Forced forced();

    // A token of the text for good; only while nothing is descended to. False: it was not legal, or
    // the grammar has failed: failure() says why, and the request must end.
    [[nodiscard]] bool commit(TokenId token);
    // The mask of the committed text's end; empty: none. Filled once until the next commit.
    std::span<const std::uint32_t> root_mask();

    std::string_view failure() const;  // empty: fine

  private:
    struct Place {
        bool reasoning = false;
        bool matched = false;  // the matcher took the last token
        std::int64_t reasoning_tokens = 0;
    };
    bool exhausted() const {
        return place_.reasoning && rule_.budget && place_.reasoning_tokens >= *rule_.budget;
    }
    bool ends_reasoning(TokenId token) const;
    bool is_eos(TokenId token) const;
    bool take(TokenId token);

    std::optional<grammar::Matcher> matcher_;
    ReasoningRule rule_;
    std::span<const std::int32_t> eos_;
    Place place_;
    std::array<Place, kMaxNodes> above_;  // the places that were left by descending
    std::int32_t depth_ = 0;
    std::string failure_;
    std::vector<std::uint32_t> root_mask_;
    bool root_mask_filled_ = false;
};

// Calls visit(node) for every legal node of the tree, each after its parent, while the constraint
// stands there; it is back at the root afterwards. What lies below an illegal node is not visited.
// Depth first, so that each node costs one step down and one up.
template <typename Visit>
void visit_legal(const TreeView& tree, Constraint& constraint, Visit visit) {
    std::array<std::int32_t, kMaxNodes> first_child, next_sibling;
    first_child.fill(-1);
    for (std::int32_t node = tree.nodes() - 1; node > 0; --node) {
        const std::int32_t parent = at(tree.parents, node);
        at(next_sibling, node) = at(first_child, parent);
        at(first_child, parent) = node;
    }
    std::array<std::int32_t, kMaxNodes> next = first_child;  // child to try, by node
    visit(0);
    for (std::int32_t node = 0;;) {
        const std::int32_t child = at(next, node);
        if (child < 0) {
            if (node == 0) return;
            constraint.ascend();
            node = at(tree.parents, node);
            continue;
        }
        at(next, node) = at(next_sibling, child);
        if (!constraint.descend(at(tree.tokens, child))) continue;
        visit(child);
        node = child;
    }
}

}  // namespace espalier::accept
