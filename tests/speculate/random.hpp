// SPDX-License-Identifier: Apache-2.0
// Random trees for the tests of src/speculate.
#pragma once

#include <cstdint>

#include "base/random.hpp"
#include "speculate/tree.hpp"

namespace espalier::speculate {

// A tree of at most `nodes` nodes over `vocabulary` tokens; deep or bushy as it comes.
inline Tree random_tree(Random& random, std::int32_t nodes, std::int32_t vocabulary) {
    Tree tree(random.between(0, vocabulary - 1));
    const bool deep = random.chance(0.3);
    for (std::int32_t tries = 0; tries < 4 * nodes && tree.size() < nodes; ++tries) {
        const std::int32_t low = deep ? tree.size() - 1 : 0;
        tree.add(random.between(low, tree.size() - 1), random.between(0, vocabulary - 1));
    }
    return tree;
}

}  // namespace espalier::speculate
