// SPDX-License-Identifier: Apache-2.0
// Any bytes as config.json and generation_config.json: refused with a message, or accepted as a
// configuration that writes and reads back as itself.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "checkpoint/model_config.hpp"
#include "checkpoint/synthetic.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace espalier;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto generation = checkpoint::parse_generation_config(text, "fuzz");
        !generation && generation.error().message.empty())
        std::abort();
    const auto config = checkpoint::parse_model_config(text, "fuzz");
    if (!config) {
        if (config.error().message.empty()) std::abort();
        return 0;
    }
    const auto again = checkpoint::parse_model_config(
        checkpoint::config_json_of(*config, config->fp8_block ? DType::e4m3 : DType::bf16),
        "written");
    if (!again || !(*again == *config)) std::abort();
    return 0;
}
