// SPDX-License-Identifier: Apache-2.0
// Where a reader of weights finds them by name in the backend's layout, or leaves those that it has
// just packed: a packed file that is read, listed or written (packed_weights.hpp).
#pragma once

#include <optional>
#include <string>

#include "base/device.hpp"
#include "base/error.hpp"
#include "linalg/packed.hpp"

namespace espalier::model {

class WeightShelf {
  public:
    virtual ~WeightShelf() = default;

    // shape: format as packed, count, n and k. Nothing: the weight is to be packed and kept.
    virtual Expected<std::optional<linalg::Weight>> take(const std::string& name,
                                                         const linalg::WeightView& shape) = 0;
    // A part of the weight of that name and shape. One that is listed has the part's shape, and
    // nothing that is written has parts.
    virtual Expected<std::optional<linalg::Weight>> take_part(Device&, const std::string& name,
                                                              const linalg::WeightView& whole,
                                                              const linalg::StackPart& part) {
        return take(name, part.shape(whole));
    }
    virtual Expected<linalg::Weight> keep(const std::string& name, linalg::Weight packed) = 0;
};

}  // namespace espalier::model
