// SPDX-License-Identifier: Apache-2.0
// What a model runs on besides attention: operations, and the layer program over them.
#pragma once

#include <memory>

#include "base/cpu_features.hpp"
#include "ops/operations.hpp"

namespace espalier::ops {

class LayerProgram;  // ops/layer_program.hpp

class Backend : public Operations {
  public:
    // The calls of a decoder layer: composed of these operations, or fused with the same bits.
    virtual const LayerProgram& program() const = 0;
};

// Plain loops over weights as a checkpoint has them (WeightLayout::rows). Products have the bits of
// the CPU's portable variant.
std::unique_ptr<Backend> make_reference_backend();
std::unique_ptr<Backend> make_cpu_backend(CpuVariant variant);

}  // namespace espalier::ops
