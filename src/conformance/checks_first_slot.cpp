// SPDX-License-Identifier: Apache-2.0
// Guarantee 5 where slots below first_slot do not exist: the bits of a call over a cache that has
// its keys one slot earlier, whatever lies in slot 0. Slots move against pages, tiles and splits.
#include "conformance/checks.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

// Every mask; a tree without history, whose tail begins at its first key; rows of one token alone,
// which have a kernel of their own; lengths around tiles, pages and a split length.
std::vector<std::vector<Row>> calls_of(Random& random, int heads) {
    Row tree = make_row(random, MaskKind::tree, heads, 5, 5);
    grow_tree(random, tree, random.one_of(kShapes));
    std::vector<Row> mixed = hostile_rows(random, heads, 6000);
    mixed.push_back(tree);
    std::vector<Row> single;
    for (const int keys : {1, 63, 64, 65, 127, 128, 129, 1024 + random.between(-1, 1)}) {
        const bool last = heads <= 16 || keys < 1000;
        const MaskKind mask = random.chance(0.5) ? MaskKind::tree : MaskKind::causal;
        single.push_back(make_row(random, mask, heads, 1, last ? keys : 192));
        if (mask == MaskKind::tree) grow_tree(random, single.back(), Shape::deep_tail);
    }
    return {mixed, single};
}

}  // namespace

void check_first_slot(Trial& trial) {
    const int heads = trial.any_heads();
    RunOptions options = trial.any_options();
    options.invariant = true;
    for (const std::vector<Row>& rows : calls_of(trial.random, heads))
        for (const int page_tokens : kPageTokens) {
            Layout layout = trial.any_layout();
            layout.page_tokens = page_tokens;
            layout.first_slot = 0;
            const auto expected = trial.run(Batch(trial.format(), heads, rows, layout), options);
            layout.first_slot = 1;
            for (const std::uint32_t poison : {0u, ~0u}) {
                layout.poison = poison;
                const Batch batch(trial.format(), heads, rows, layout);
                const auto result = trial.run(batch, options);
                if (!expected || !result) return;
                trial.expect_none(bit_difference(*result, *expected), "{:#x} in slot 0; {}", poison,
                                  describe(batch, options));
            }
        }
}

}  // namespace espalier::conformance
