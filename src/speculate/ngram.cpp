// SPDX-License-Identifier: Apache-2.0
// Proposals from a suffix automaton, grown best first.
#include "speculate/ngram.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

using State = SuffixAutomaton::State;
constexpr State kNone = SuffixAutomaton::kNone;

// A short context can have thousands of continuations; the newest tell enough.
constexpr std::int32_t kEdgesRead = 64;
// Contexts tried one below the other. The fourth enters with a few percent at most.
constexpr int kContexts = 3;
constexpr std::size_t kMostChildren = 16;
// Tokens of a prompt's end that an expected output stands behind: a match of so many is trusted
// with 32/33.
constexpr std::size_t kExpectedBehind = 64;

// Number of occurrences that a match of `length` tokens leaves for "something else": a single
// occurrence of 2 matched tokens is trusted with 1/2, of 8 with 4/5, of 32 with 16/17.
float escape_count(std::int32_t length) { return 2.0f / static_cast<float>(length); }

// A place where the tree could grow.
struct FrontierNode {
    float path_score;
    float score;
    std::int32_t parent;
    TokenId token;
    State state;
    std::int32_t length;
    std::int32_t order;  // of discovery: earlier wins among equals, for determinism
};

bool lower_priority(const FrontierNode& a, const FrontierNode& b) {
    return a.path_score != b.path_score ? a.path_score < b.path_score : a.order > b.order;
}

// Keeps `list` sorted by score, the first come first among equals; the last falls off a full list.
// Lists hold at most 16, and std::stable_sort would allocate in the step loop.
void insert_by_score(std::span<Continuation> list, std::size_t& size, const Continuation& added) {
    std::size_t place = size;
    while (place > 0 && list[place - 1].score < added.score) --place;
    if (place == list.size()) return;
    size = std::min(size + 1, list.size());
    std::move_backward(list.begin() + static_cast<std::ptrdiff_t>(place),
                       list.begin() + static_cast<std::ptrdiff_t>(size) - 1,
                       list.begin() + static_cast<std::ptrdiff_t>(size));
    list[place] = added;
}

bool holds(std::span<const Continuation> found, TokenId token) {
    return std::any_of(found.begin(), found.end(),
                       [&](const Continuation& c) { return c.token == token; });
}

}  // namespace

std::size_t continuations(const SuffixAutomaton& automaton, State context, std::int32_t length,
                          std::int32_t least_match, std::span<Continuation> out) {
    CHECK(out.size() <= kMostChildren, "{} continuations of {}", out.size(), kMostChildren);
    std::size_t found = 0;
    float entered = 1;  // probability of having come down to this context
    for (int level = 0; level < kContexts && context > 0 && length >= least_match;) {
        std::array<Continuation, kMostChildren> best;
        std::size_t fresh = 0;
        float total = escape_count(length);
        std::int32_t edges = 0;
        for (std::int32_t e = automaton.first_edge(context); e != kNone && edges < kEdgesRead;
             e = automaton.edge(e).next, ++edges) {
            const SuffixAutomaton::Edge& edge = automaton.edge(e);
            // Continuations that a longer context has offered are excluded here, as in PPM.
            if (holds(out.first(found), edge.token)) continue;
            const auto count = static_cast<float>(automaton.count(edge.target));
            total += count;
            // Newest edges come first, so the newest wins among equal counts.
            insert_by_score({best.data(), out.size()}, fresh,
                            {edge.token, count, edge.target, length + 1});
        }
        const float weight = entered / total;
        for (std::size_t i = 0, before = found; i < fresh && before + i < out.size(); ++i) {
            best[i].score *= weight;
            insert_by_score(out, found, best[i]);
        }
        // A context without an edge (the text's end) is no evidence of anything: pass it freely.
        if (edges > 0) {
            entered = weight * escape_count(length);
            ++level;
        }
        context = automaton.link(context);
        length = context == kNone ? 0 : automaton.length(context);
    }
    return found;
}

NgramHistory::NgramHistory(const NgramLimits& limits, std::int64_t expected_tokens)
    : limits_(limits) {
    CHECK(limits.least_match >= 1 && limits.max_depth >= 1 && limits.history >= 2,
          "a match of {}, a depth of {}, a history of {}", limits.least_match, limits.max_depth,
          limits.history);
    CHECK(
        limits.max_children >= 1 && static_cast<std::size_t>(limits.max_children) <= kMostChildren,
        "{} children, at most {}", limits.max_children, kMostChildren);
    old_.reserve(std::min(expected_tokens, limits.history));
}

void NgramHistory::append(TokenId token) {
    old_.append(token);
    if (old_.tokens() > limits_.history / 2) young_.append(token);
    if (old_.tokens() < limits_.history) return;
    std::swap(old_, young_);
    young_ = SuffixAutomaton();
}

void NgramHistory::propose(const DraftShape& shape, Proposal& proposal) const {
    const std::int32_t nodes = std::min(shape.nodes, kMaxNodes);
    const std::int32_t depth = std::min(shape.depth, limits_.max_depth);
    std::array<FrontierNode, kMaxNodes * kMostChildren> frontier;
    std::size_t frontier_size = 0;
    std::int32_t order = 0;
    const auto expand = [&](std::int32_t node, float path_score, State context,
                            std::int32_t length) {
        std::array<Continuation, kMostChildren> found;
        const std::size_t count =
            continuations(old_, context, length, limits_.least_match,
                          {found.data(), static_cast<std::size_t>(limits_.max_children)});
        for (std::size_t i = 0; i < count; ++i) {
            const float child_path = path_score * found[i].score;
            if (child_path < limits_.least_path_score) break;
            frontier[frontier_size++] = {child_path,     found[i].score,  node,   found[i].token,
                                         found[i].state, found[i].length, order++};
            std::push_heap(frontier.begin(),
                           frontier.begin() + static_cast<std::ptrdiff_t>(frontier_size),
                           lower_priority);
        }
    };

    if (nodes <= 1 || depth < 1) return;
    const State match = old_.link(old_.text());
    if (match != kNone) expand(0, 1, match, old_.length(match));
    while (frontier_size > 0 && proposal.tree.size() < nodes) {
        std::pop_heap(frontier.begin(),
                      frontier.begin() + static_cast<std::ptrdiff_t>(frontier_size),
                      lower_priority);
        const FrontierNode best = frontier[--frontier_size];
        const std::int32_t node = proposal.add(best.parent, best.token, best.score);
        if (proposal.tree.size() < nodes && proposal.tree.depth(node) < depth)
            expand(node, best.path_score, best.state, best.length);
    }
}

NgramHistory& NgramDrafter::history(RequestSlot request) {
    CHECK(histories_.has(request) && histories_[request] != nullptr,
          "request slot {} has not begun", request.value());
    return *histories_[request];
}

void NgramDrafter::expect(RequestSlot request, std::span<const TokenId> prompt,
                          std::span<const TokenId> output) {
    const auto read = std::min(output.size(), static_cast<std::size_t>(limits_.expected));
    std::unique_ptr<NgramHistory>& made = histories_.grown_to(request);
    made = std::make_unique<NgramHistory>(limits_,
                                          static_cast<std::int64_t>(prompt.size() + 2 * read));
    for (const TokenId token : prompt.last(std::min(prompt.size(), kExpectedBehind)))
        made->append(token);
    for (const TokenId token : output.first(read)) made->append(token);
}

void NgramDrafter::begin(RequestSlot request, std::span<const TokenId> prompt,
                         std::int64_t max_tokens) {
    std::unique_ptr<NgramHistory>& made = histories_.grown_to(request);
    const auto expected = static_cast<std::int64_t>(prompt.size()) +
                          std::min<std::int64_t>(std::max<std::int64_t>(max_tokens, 0),
                                                 4096);  // longer outputs are rare: let them grow
    if (made == nullptr) made = std::make_unique<NgramHistory>(limits_, expected);
    for (const TokenId token : prompt) made->append(token);
}

void NgramDrafter::end(RequestSlot request) {
    history(request);
    histories_[request].reset();
}

void NgramDrafter::commit(std::span<const Commitment> commitments) {
    for (const Commitment& c : commitments)
        for (const TokenId token : c.tokens) history(c.request).append(token);
}

Expected<void> NgramDrafter::propose(std::span<const DraftCall> calls) {
    for (const DraftCall& call : calls) {
        CHECK(call.proposal != nullptr, "request slot {}: no proposal to fill",
              call.request.value());
        history(call.request).propose(call.shape, *call.proposal);
    }
    return {};
}

std::int64_t NgramDrafter::bytes() const {
    std::int64_t total = 0;
    for (const auto& h : histories_) total += h == nullptr ? 0 : h->bytes();
    return total;
}

}  // namespace espalier::speculate
