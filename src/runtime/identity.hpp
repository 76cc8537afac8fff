// SPDX-License-Identifier: Apache-2.0
// The identity of texts that a model gives on this machine (base/text_identity.hpp), before its
// weights are read.
#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "base/text_identity.hpp"
#include "checkpoint/checkpoint.hpp"
#include "runtime/loaded_model.hpp"

namespace espalier::runtime {

// Reads device, kv_format, roundings and activations of the options.
Expected<TextIdentity> text_identity(const checkpoint::Checkpoint& checkpoint,
                                     const LoadOptions& options, std::int64_t prefill_segment);

// The same without the model's hash: reads no tensor.
Expected<TextIdentity> identity_without_model(const checkpoint::Checkpoint& checkpoint,
                                              const LoadOptions& options,
                                              std::int64_t prefill_segment);

std::string_view family_of(DeviceKind device);

// The number mode of activations that these options mean for this model. Its weights are those of
// the last layer's o, gate and down: codes, if any of them has codes.
Expected<NumberMode> number_mode_of(const checkpoint::Checkpoint& checkpoint,
                                    const LoadOptions& options);

// The options of loading that the identity's numbers ask for, on the CPU. A word that this build
// does not know becomes `own`: text_identity() of these options then differs.
LoadOptions load_options_of(const TextIdentity& identity);

}  // namespace espalier::runtime
