// SPDX-License-Identifier: Apache-2.0
#include "lossless/random_drafter.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "cache/page.hpp"

namespace espalier::lossless {

void RandomDrafter::begin(RequestSlot request, std::span<const std::int32_t> prompt, std::int64_t) {
    Tokens& committed = committed_.grown_to(request);
    CHECK(committed.empty(), "slot {} begins twice", request.value());
    committed.assign(prompt.begin(), prompt.end());
}

void RandomDrafter::end(RequestSlot request) { committed_[request].clear(); }

void RandomDrafter::commit(std::span<const speculate::Commitment> commitments) {
    for (const speculate::Commitment& one : commitments) {
        Tokens& tokens = committed_[one.request];
        tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
    }
}

// One of the texts that go on after these tokens.
const RandomDrafter::Tokens* RandomDrafter::matching_text(const Tokens& committed) {
    std::vector<const Tokens*> matching;
    for (const Tokens& text : texts_)
        if (text.size() > committed.size() &&
            std::equal(committed.begin(), committed.end(), text.begin()))
            matching.push_back(&text);
    return matching.empty() ? nullptr : matching[random_.bits() % matching.size()];
}

float RandomDrafter::score(bool true_node) {
    const float any = static_cast<float>(random_.between(1, 100)) / 100;
    if (!options_.truth_last) return any;
    return true_node ? any / 100 : any;
}

void RandomDrafter::grow(const speculate::DraftCall& call) {
    speculate::Proposal& proposal = *call.proposal;
    const Tokens& committed = committed_[call.request];
    CHECK(committed.back() == proposal.tree.token(0), "the root is {}, committed was {}",
          proposal.tree.token(0), committed.back());
    const Tokens* text = matching_text(committed);
    std::size_t next = committed.size();
    std::int32_t tip = 0;  // deepest node that is right
    if (options_.model_like)
        CHECK(std::ssize(call.block_table) * cache::kPageTokens >=
                  call.root_position + call.shape.nodes,
              "{} pages for {} nodes from {} on", call.block_table.size(), call.shape.nodes,
              call.root_position);
    const int most = std::min(call.shape.nodes, random_.between(1, 1 << random_.between(1, 6)));
    for (int tries = 0; proposal.tree.size() < most && tries < 200; ++tries) {
        if (text != nullptr && next < text->size() && random_.chance(options_.truth) &&
            proposal.tree.depth(tip) < call.shape.depth) {
            tip = proposal.add(tip, (*text)[next++], score(true));
            continue;
        }
        const std::int32_t parent = random_.between(0, proposal.tree.size() - 1);
        if (proposal.tree.depth(parent) >= call.shape.depth) continue;
        proposal.add(parent, palette_[random_.bits() % palette_.size()], score(false));
    }
}

Expected<void> RandomDrafter::propose(std::span<const speculate::DraftCall> calls) {
    ++calls_;
    if (clock_ != nullptr) *clock_ += options_.call_nanoseconds;
    if (options_.breaks_after >= 0 && calls_ > options_.breaks_after)
        return fail(ErrorKind::io, "the workload's drafter broke after {} calls",
                    options_.breaks_after);
    for (const speculate::DraftCall& call : calls) {
        if (random_.chance(options_.silence)) continue;
        grow(call);
        if (random_.chance(options_.out_of_vocabulary) && !call.proposal->tree.full())
            call.proposal->add(0, 1 << 30, 1.0f);
    }
    return {};
}

}  // namespace espalier::lossless
