// SPDX-License-Identifier: Apache-2.0
// Merging, ranking and the accounting of proposals.
#include "speculate/merge.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

// Even a drafter that was always right is not certain: leaves every longer path a little cheaper.
constexpr double kLargestConditional = 0.99;

std::size_t at(std::int32_t node) { return static_cast<std::size_t>(node); }

struct Standing {
    Place place;
    std::int32_t rank;
};

// A proposal's nodes by their parents: siblings in the order of their numbers.
class Siblings {
  public:
    explicit Siblings(const Proposal& proposal) : proposal_(proposal) {
        const std::span<const std::int32_t> parents = proposal.tree.parents();
        std::fill_n(first_.begin(), parents.size(), kNoNode);
        for (auto i = static_cast<std::int32_t>(parents.size()) - 1; i > 0; --i) {
            next_[at(i)] = first_[at(parents[at(i)])];
            first_[at(parents[at(i)])] = i;
        }
    }
    // Rank and margin of a node among its siblings, by score, ties to the earlier node.
    Standing standing(std::int32_t node) const {
        const Tree& tree = proposal_.tree;
        const float own = proposal_.score[at(node)];
        float best_other = 0;
        std::int32_t rank = 0;
        for (std::int32_t i = first_[at(tree.parents()[at(node)])]; i != kNoNode;
             i = next_[at(i)]) {
            if (i == node) continue;
            const float other = proposal_.score[at(i)];
            best_other = std::max(best_other, other);
            rank += other > own || (other == own && i < node) ? 1 : 0;
        }
        return {place_of(proposal_.drafter, tree.depths()[at(node)], rank, own - best_other,
                         proposal_.coupled),
                rank};
    }

  private:
    const Proposal& proposal_;
    std::array<std::int32_t, kMaxNodes> first_, next_;
};

}  // namespace

Proposal narrowed(const Proposal& proposal, std::int32_t width) {
    const Tree& tree = proposal.tree;
    Proposal kept(proposal.drafter, tree.token(0));
    kept.coupled = proposal.coupled;
    std::array<std::int32_t, kMaxNodes> place = {}, of_level = {};
    for (std::int32_t i = 1; i < tree.size(); ++i) {
        const std::int32_t parent = place[at(tree.parent(i))];
        std::int32_t& count = of_level[at(tree.depth(i))];
        const bool fits = parent != kNoNode && count < width;
        place[at(i)] = fits ? kept.add(parent, tree.token(i), proposal.score[at(i)]) : kNoNode;
        count += fits ? 1 : 0;
    }
    return kept;
}

void Candidates::reset(TokenId root) {
    nodes_.clear();
    nodes_.reserve(kMaxCandidates);
    nodes_.push_back(Node{root});
}

std::int32_t Candidates::child(std::int32_t parent, TokenId token) const {
    std::int32_t i = nodes_[at(parent)].first_child;
    while (i != kNoNode && nodes_[at(i)].token != token) i = nodes_[at(i)].next_sibling;
    return i;
}

std::int32_t Candidates::find_or_add(std::int32_t parent, TokenId token) {
    if (const std::int32_t existing = child(parent, token); existing != kNoNode) return existing;
    const std::int32_t added = size();
    Node& above = nodes_[at(parent)];
    (above.first_child == kNoNode ? above.first_child : nodes_[at(above.last_child)].next_sibling) =
        added;
    above.last_child = added;
    Node node;
    node.token = token;
    node.parent = parent;
    node.depth = above.depth + 1;
    nodes_.push_back(node);
    return added;
}

Expected<void> Candidates::check(const Proposal& proposal, std::int64_t vocabulary) const {
    const DrafterId drafter = proposal.drafter;
    if (drafter >= kMaxDrafters)
        return fail(ErrorKind::invalid, "drafter {}: at most {} drafters", drafter, kMaxDrafters);
    const Tree& tree = proposal.tree;
    if (tree.token(0) != nodes_[0].token)
        return fail(ErrorKind::invalid, "drafter {}: root is token {}, the request's is {}",
                    drafter, tree.token(0), nodes_[0].token);
    if ((nodes_[0].sources >> drafter & 1) != 0)
        return fail(ErrorKind::invalid, "drafter {}: a second proposal for one step", drafter);
    for (std::int32_t i = 1; i < tree.size(); ++i)
        if (tree.token(i) < 0 || tree.token(i) >= vocabulary)
            return fail(ErrorKind::invalid,
                        "drafter {}: node {} has token {} of a vocabulary of {}", drafter, i,
                        tree.token(i), vocabulary);
    return {};
}

Expected<void> Candidates::add(const Proposal& proposal, std::int64_t vocabulary) {
    ESPALIER_RETURN_IF_ERROR(check(proposal, vocabulary));
    const DrafterId drafter = proposal.drafter;
    const auto bit = static_cast<std::uint8_t>(1u << drafter);
    nodes_[0].sources |= bit;
    if (proposal.tree.size() == 1) return {};
    const std::span<const TokenId> tokens = proposal.tree.tokens();
    const std::span<const std::int32_t> parents = proposal.tree.parents();
    const Siblings siblings(proposal);
    std::array<std::int32_t, kMaxNodes> merged;  // the proposal's node -> ours
    merged[0] = 0;
    for (std::int32_t i = 1; i < proposal.tree.size(); ++i) {
        merged[at(i)] = find_or_add(merged[at(parents[at(i)])], tokens[at(i)]);
        Node& node = nodes_[at(merged[at(i)])];
        node.sources |= bit;
        const Standing standing = siblings.standing(i);
        node.places[drafter] = standing.place;
        node.ranks[drafter] = static_cast<std::uint8_t>(standing.rank);
    }
    return {};
}

// Drafters that agree are rarely independent, so the surest of them speaks for all: the node is
// counted to it.
Candidates::Estimate Candidates::conditional(const Node& node, const AcceptanceTable& table,
                                             const RequestBias& bias) {
    Estimate best;
    for (DrafterId d = 0; d < kMaxDrafters; ++d) {
        if ((node.sources >> d & 1) == 0) continue;
        const double chance = table.estimate(node.places[d]) * bias.factor(d);
        if (chance > best.chance) best = {chance, d};
    }
    best.chance = std::min(best.chance, kLargestConditional);
    return best;
}

void Candidates::rank(const AcceptanceTable& table, const RequestBias& bias, std::int32_t max_nodes,
                      RankedTree& ranked) const {
    CHECK(max_nodes >= 1 && max_nodes <= kMaxNodes, "a budget of {} nodes", max_nodes);
    ranked.reset(nodes_[0].token);
    ranked.origins[0].drafters = nodes_[0].sources;
    if (nodes_.size() == 1) return;
    std::array<double, kMaxCandidates> survival;
    std::array<double, kMaxCandidates> children_sum;
    std::array<DrafterId, kMaxCandidates> surest;
    std::fill_n(children_sum.begin(), nodes_.size(), 0.0);
    survival[0] = 1;
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
        const Estimate estimate = conditional(nodes_[i], table, bias);
        survival[i] = estimate.chance;
        surest[i] = estimate.drafter;
        children_sum[at(nodes_[i].parent)] += survival[i];
    }
    // Siblings exclude each other: their chances may not add up to more than certainty.
    for (std::size_t i = 1; i < nodes_.size(); ++i) {
        const std::size_t parent = at(nodes_[i].parent);
        survival[i] *= survival[parent] / std::max(1.0, children_sum[parent]);
    }

    std::array<std::int32_t, kMaxCandidates> order;
    const auto end = order.begin() + static_cast<std::ptrdiff_t>(nodes_.size());
    for (std::int32_t i = 0; i < size(); ++i) order[at(i)] = i;
    const auto kept = order.begin() + std::min<std::ptrdiff_t>(max_nodes, end - order.begin());
    std::partial_sort(order.begin(), kept, end, [&](std::int32_t a, std::int32_t b) {
        return survival[at(a)] != survival[at(b)] ? survival[at(a)] > survival[at(b)] : a < b;
    });

    std::array<std::int32_t, kMaxCandidates> place;  // our node -> the ranked tree's
    place[0] = 0;
    for (auto i = order.begin() + 1; i < kept; ++i) {
        const Node& node = nodes_[at(*i)];
        const std::int32_t added = ranked.tree.add_new(place[at(node.parent)], node.token);
        place[at(*i)] = added;
        ranked.survival[at(added)] = survival[at(*i)];
        const DrafterId drafter = surest[at(*i)];
        ranked.origins[at(added)] = {.drafters = node.sources,
                                     .drafter = drafter,
                                     .depth = static_cast<std::uint8_t>(node.depth),
                                     .rank = node.ranks[drafter]};
    }
}

void Candidates::compare(std::span<const TokenId> drawn,
                         std::vector<Comparison>& comparisons) const {
    comparisons.clear();
    std::int32_t parent = 0, level = 0;
    for (const TokenId token : drawn) {
        for (std::int32_t i = nodes_[at(parent)].first_child; i != kNoNode;
             i = nodes_[at(i)].next_sibling) {
            const Node& node = nodes_[at(i)];
            for (DrafterId d = 0; d < kMaxDrafters; ++d)
                if ((node.sources >> d & 1) != 0)
                    comparisons.push_back({node.places[d], level, node.token == token});
        }
        ++level;
        parent = child(parent, token);
        if (parent == kNoNode) break;
    }
}

}  // namespace espalier::speculate
