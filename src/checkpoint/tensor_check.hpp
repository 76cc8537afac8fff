// SPDX-License-Identifier: Apache-2.0
// Whether a checkpoint's tensors are those of the model that its config.json describes. A tensor
// that no part of the model reads (a layer too many, a bias, an indexer) would change the text and
// nothing would tell.
#pragma once

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"

namespace espalier::checkpoint {

// Refuses tensors that the model does not have, and products whose inputs would differ in dtype.
// Not refused: MTP layers beyond those that config.json announces, rotary_emb.inv_freq (computed
// from config.json), and the head of a tied model where it repeats the embedding.
// Tensors that are missing are the reader's business: it knows what it can do without.
Expected<void> check_tensors(const Checkpoint& checkpoint);

}  // namespace espalier::checkpoint
