// SPDX-License-Identifier: Apache-2.0
// The one address in this tree: the hub that models are fetched from where HF_ENDPOINT names none.
#pragma once

namespace espalier::hub {

inline constexpr const char* kDefaultEndpoint = "https://huggingface.co";

}  // namespace espalier::hub
