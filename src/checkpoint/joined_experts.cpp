// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/joined_experts.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>

namespace espalier::checkpoint {
namespace {

constexpr std::string_view kExperts = ".mlp.experts.";
constexpr std::int64_t kMaxJoinedExperts = 4096;

// A tensor's name behind kExperts, and those of its parts behind "experts.N.".
struct Joined {
    std::string_view name;
    std::string_view first, second;  // second empty: one part an expert
    std::size_t dimensions;
};
constexpr std::array<Joined, 6> kJoined = {{
    {"gate_up_proj", "gate_proj.weight", "up_proj.weight", 3},
    {"down_proj", "down_proj.weight", "", 3},
    {"gate_up_proj_scale_inv", "gate_proj.weight_scale_inv", "up_proj.weight_scale_inv", 3},
    {"down_proj_scale_inv", "down_proj.weight_scale_inv", "", 3},
    {"gate_up_proj_activation_scale", "gate_proj.activation_scale", "up_proj.activation_scale", 1},
    {"down_proj_activation_scale", "down_proj.activation_scale", "", 1},
}};

const Joined* joined_of(std::string_view name) {
    const std::size_t at = name.find(kExperts);
    if (at == std::string_view::npos) return nullptr;
    const auto* found =
        std::ranges::find(kJoined, name.substr(at + kExperts.size()), &Joined::name);
    return found == kJoined.end() ? nullptr : found;
}

}  // namespace

bool is_joined_experts(std::string_view name) { return joined_of(name) != nullptr; }

Expected<std::vector<std::pair<std::string, TensorEntry>>> split_joined_experts(
    std::string_view name, const TensorEntry& entry, std::string_view place) {
    const Joined& joined = *joined_of(name);
    const std::string prefix(name.substr(0, name.find(kExperts) + kExperts.size()));
    const std::vector<std::int64_t>& shape = entry.shape;
    const bool fits = shape.size() == joined.dimensions && shape[0] >= 1 &&
                      shape[0] <= kMaxJoinedExperts && bytes_of(entry.type) > 0;
    if (!fits)
        return fail(ErrorKind::invalid,
                    "{}: tensor '{}' is {} [{}], expected {} dimensions, of which the first counts "
                    "1 to {} experts",
                    place, name, entry.type_name(), fmt::join(shape, ", "), joined.dimensions,
                    kMaxJoinedExperts);
    std::vector<std::int64_t> one(shape.begin() + 1, shape.end());
    std::uint64_t numbers = 1;
    for (const std::int64_t dimension : one) numbers *= static_cast<std::uint64_t>(dimension);
    // One number for the whole of an expert belongs to both of its parts.
    const bool parted = !joined.second.empty() && numbers > 1;
    if (parted && one.front() % 2 != 0)
        return fail(ErrorKind::invalid,
                    "{}: tensor '{}' joins gate and up in {} rows, no even number", place, name,
                    one.front());
    if (parted) one.front() /= 2;
    const std::uint64_t step = numbers * bytes_of(entry.type);
    std::vector<std::pair<std::string, TensorEntry>> parts;
    for (std::int64_t expert = 0; expert < shape[0]; ++expert) {
        const auto add = [&](std::string_view part, std::uint64_t skipped, std::uint64_t bytes) {
            TensorEntry own = entry;
            own.shape = one;
            own.begin = entry.begin + static_cast<std::uint64_t>(expert) * step + skipped;
            own.end = own.begin + bytes;
            parts.emplace_back(fmt::format("{}{}.{}", prefix, expert, part), std::move(own));
        };
        const std::uint64_t bytes = parted ? step / 2 : step;
        add(joined.first, 0, bytes);
        if (!joined.second.empty()) add(joined.second, parted ? bytes : 0, bytes);
    }
    return parts;
}

}  // namespace espalier::checkpoint
