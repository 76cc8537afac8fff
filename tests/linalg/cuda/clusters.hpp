// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace espalier::linalg::cuda {

// Clusters of that many blocks that the current device runs at once of a product that is split.
int clusters_of_split_product(int blocks);

}  // namespace espalier::linalg::cuda
