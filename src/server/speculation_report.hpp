// SPDX-License-Identifier: Apache-2.0
// What a request is told about its drafts when it asks: which drafter each piece of the text came
// from, the trees of the last steps, and how many nodes were verified and accepted, by depth and by
// drafter. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accept/request_progress.hpp"
#include "engine/verified_tree.hpp"
#include "server/logprobs.hpp"
#include "text/tokenizer.hpp"

namespace espalier::server {

// [{"text", "source"}] of some text of an output and the tokens that came with it; `before`: bytes
// of the output in front of that text. The texts joined are the whole of it, each of whole code
// points: a token's share begins where the token does, or at the next code point. source: a
// drafter's name, or target where no draft was right.
OrderedJson text_sources(std::string_view text, std::int64_t before,
                         std::span<const accept::CommittedToken> tokens,
                         const std::vector<std::string>& drafters);

// {"texts": [root, …], "parents": [-1, …], "sources": [null, "ngram", …], "path": [0, …]}, all by
// node but the path, which names the nodes that were accepted, the root first. A token that is no
// UTF-8 by itself is written as token_text() does.
OrderedJson tree_report(const engine::VerifiedTree& tree, const text::Tokenizer& tokenizer,
                        const std::vector<std::string>& drafters);

// {"steps", "drafted", "accepted", "accepted_at_depth": [depth 1, 2, …], "drafters": {name: …}}
// states: of the drafters (engine::kDrafterStates).
OrderedJson speculation_totals(const accept::Usage& usage, const std::vector<std::string>& drafters,
                               const std::vector<std::string_view>& states);

}  // namespace espalier::server
