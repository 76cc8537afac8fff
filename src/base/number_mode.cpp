// SPDX-License-Identifier: Apache-2.0
#include "base/number_mode.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace espalier {
namespace {

// Modes of a family beside `own`, for weights that take one, and the mode that auto means for them.
struct FamilyModes {
    std::string_view family;
    bool int8, fp8;
    NumberMode automatic;
};
constexpr FamilyModes kFamilies[] = {
    {.family = "cpu", .int8 = true, .fp8 = false, .automatic = NumberMode::int8},
    {.family = "hopper", .int8 = false, .fp8 = false, .automatic = NumberMode::own},
};

bool has(const FamilyModes& modes, NumberMode mode) {
    return mode == NumberMode::own || (mode == NumberMode::int8 ? modes.int8 : modes.fp8);
}

}  // namespace

std::optional<NumberMode> parse_number_mode(std::string_view name) {
    for (const NumberMode mode : kNumberModes)
        if (name == name_of(mode)) return mode;
    return std::nullopt;
}

Expected<NumberMode> resolve_number_mode(std::optional<NumberMode> asked, std::string_view family,
                                         WeightCode weights) {
    const auto* const modes = std::ranges::find(kFamilies, family, &FamilyModes::family);
    CHECK(modes != std::end(kFamilies), "no number modes for the family {}", family);
    if (!asked) return takes_number_mode(weights) ? modes->automatic : NumberMode::own;
    if (!has(*modes, *asked))
        return fail_field(ErrorKind::unsupported, "activations", "{}: not on the device family {}",
                          name_of(*asked), family);
    if (*asked != NumberMode::own && !takes_number_mode(weights))
        return fail_field(ErrorKind::unsupported, "activations",
                          "{}, but the weights are {}: products of int8 and int4 ones round their "
                          "inputs",
                          name_of(*asked), name_of(weights));
    return *asked;
}

}  // namespace espalier
