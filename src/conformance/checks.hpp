// SPDX-License-Identifier: Apache-2.0
// The checks by name; suite.cpp has their titles, the files checks_*.cpp what they do.
#pragma once

#include "conformance/trial.hpp"

namespace espalier::conformance {

// checks_masks.cpp
void check_nothing_visible(Trial& trial);
void check_garbage(Trial& trial);
void check_sibling_branches(Trial& trial);
void check_bounds(Trial& trial);
void check_tables_by_slot(Trial& trial);
void check_large_cache(Trial& trial);
// checks_invariance.cpp
void check_deterministic(Trial& trial);
void check_shared_plan(Trial& trial);
void check_settled_history(Trial& trial);
void check_launches(Trial& trial);
void check_row_invariant(Trial& trial);
void check_chain_equals_causal(Trial& trial);
void check_path_invariant(Trial& trial);
void check_split_thresholds(Trial& trial);
void check_compositions(Trial& trial);
void check_draft_levels(Trial& trial);
// checks_first_slot.cpp
void check_first_slot(Trial& trial);
// checks_lists.cpp
void check_lists(Trial& trial);
// checks_select.cpp
void check_select(Trial& trial);
void check_select_flags(Trial& trial);
void check_select_path(Trial& trial);
// checks_graph.cpp
void check_graph_safe(Trial& trial);
// checks_refusal.cpp
void check_no_silent_no_op(Trial& trial);
// checks_accuracy.cpp
void check_overflow_safe(Trial& trial);
void check_accuracy(Trial& trial);
void check_signal_to_noise(Trial& trial);
void check_outputs(Trial& trial);
void check_context_parallel(Trial& trial);
// checks_prompt.cpp: the decompressed entry
void check_prompt_accuracy(Trial& trial);
void check_prompt_invariant(Trial& trial);
void check_prompt_garbage(Trial& trial);
// checks_storage.cpp
void check_append_arrays(Trial& trial);
void check_compact_arrays(Trial& trial);

}  // namespace espalier::conformance
