// SPDX-License-Identifier: Apache-2.0
// Number mode of activations: the numbers as which products with coded weights read their inputs.
// It is resolved once, when a model is loaded, by the one table of number_mode.cpp from the
// device's family and the weights; other products read the inputs that the weights' format names.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "base/error.hpp"
#include "base/weight_format.hpp"

namespace espalier {

enum class NumberMode : std::uint8_t {
    own,   // the weights' format says: bf16 for codes
    int8,  // rounded to 8 bits by blocks of 32 (linalg/rounded_inputs.hpp)
    fp8,   // no device has it yet
};

inline constexpr std::array kNumberModes = {NumberMode::own, NumberMode::int8, NumberMode::fp8};

constexpr std::string_view name_of(NumberMode mode) {
    switch (mode) {
        case NumberMode::own:
            return "own";
        case NumberMode::int8:
            return "int8";
        case NumberMode::fp8:
            return "fp8";
    }
    return "?";
}
// None for another name, as "auto".
std::optional<NumberMode> parse_number_mode(std::string_view name);

// True for weights whose products a number mode acts on.
constexpr bool takes_number_mode(WeightCode weights) {
    return weights == WeightCode::int8 || weights == WeightCode::int4;
}

// The mode of a model with these weights on this family of devices ("cpu", "hopper"). Nothing
// asked: auto. What the device or the weights do not have is refused by name.
Expected<NumberMode> resolve_number_mode(std::optional<NumberMode> asked, std::string_view family,
                                         WeightCode weights);

}  // namespace espalier
