// SPDX-License-Identifier: Apache-2.0
#include "conformance/problem.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace espalier::conformance {

using namespace mla;

namespace {

float query_size(Spread spread) {
    return spread == Spread::flat ? 0.01f : spread == Spread::peaked ? 4.0f : 1.0f;
}

// One more row, of at most `budget` scores.
Row hostile_row(Random& random, int heads, std::int64_t budget, const Hostility& hostility) {
    const auto mask = static_cast<MaskKind>(random.between(0, 3));
    const auto affordable = std::clamp<std::int64_t>(budget / heads, 1, hostility.longest);
    const int keys =
        hostile_length(random, random.chance(0.3) ? std::min(40, static_cast<int>(affordable))
                                                  : static_cast<int>(affordable));
    const auto most =
        static_cast<int>(std::clamp<std::int64_t>(budget / (heads * (keys + 1)), 1, kMaxTail));
    Row row = make_row(random, mask, heads, random.between(1, most), keys, hostility.spread);
    if (mask == MaskKind::tree) grow_tree(random, row, random.one_of(kShapes));
    if (mask == MaskKind::dense) punch_holes(random, row, random.chance(0.5) ? 0.9 : 0.2);
    if (mask == MaskKind::dense && hostility.malformed && random.chance(0.4)) {
        row.malformed = true;
        row.mask_offset = malformed_offset(random);
    }
    if (hostility.scales) spread_token_scales(random, row);
    return row;
}

}  // namespace

Row make_row(Random& random, MaskKind mask, int heads, int tokens, int keys, Spread spread,
             std::int64_t columns) {
    Row row;
    row.mask = mask;
    row.tokens = tokens;
    row.keys = keys;
    row.tail = tokens;
    row.global_keys = keys;
    row.key.resize(static_cast<std::size_t>(keys * kKey));
    for (float& x : row.key) x = random.normal();
    row.query.resize(static_cast<std::size_t>(tokens * heads * columns));
    for (float& x : row.query) x = random.normal() * query_size(spread);
    row.words.assign(static_cast<std::size_t>(tokens), 0);
    return row;
}

void spread_token_scales(Random& random, Row& row) {
    for (int c = 0; c < row.keys; ++c) {
        const float factor = std::ldexp(1.0f, random.between(-10, 4));
        for (std::int64_t d = 0; d < kKey; ++d)
            row.key[static_cast<std::size_t>(c * kKey + d)] *= factor;
    }
    for (float& x : row.query) x *= 0x1p-4f;
}

std::vector<std::uint64_t> ancestor_words(const std::vector<int>& parent) {
    std::vector<std::uint64_t> words(parent.size());
    for (std::size_t node = 0; node < parent.size(); ++node) {
        const std::uint64_t above =
            parent[node] < 0 ? 0 : words[static_cast<std::size_t>(parent[node])];
        words[node] = above | (std::uint64_t{1} << node);
    }
    return words;
}

void grow_tree(Random& random, Row& row, Shape shape) {
    row.tail = shape == Shape::deep_tail ? random.between(row.tokens, static_cast<int>(kMaxTail))
                                         : row.tokens;
    std::vector<int> parent(static_cast<std::size_t>(row.tail), -1);
    for (int node = 1; node < row.tail; ++node) {
        int& above = parent[static_cast<std::size_t>(node)];
        above = node - 1;
        if (shape == Shape::star) above = 0;
        if (shape == Shape::binary) above = (node - 1) / 2;
        if (shape == Shape::random || shape == Shape::deep_tail)
            above = random.between(0, node - 1);
    }
    const std::vector<std::uint64_t> nodes = ancestor_words(parent);
    for (int i = 0; i < row.tokens; ++i) {
        std::uint64_t& word = row.words[static_cast<std::size_t>(i)];
        word = nodes[static_cast<std::size_t>(row.tail - row.tokens + i)];
        if (shape == Shape::disconnected)
            word = random.chance(0.2) ? 0 : random.bits() & random.bits();
    }
}

void punch_holes(Random& random, Row& row, double visible) {
    row.dense.resize(static_cast<std::size_t>(row.tokens * row.keys));
    // Any nonzero byte means visible, the ones with the top bit too.
    for (std::uint8_t& byte : row.dense)
        byte = random.chance(visible) ? static_cast<std::uint8_t>(random.between(1, 255))
                                      : std::uint8_t{0};
}

int hostile_length(Random& random, int most) {
    static constexpr int kSteps[] = {16, 32, 64, 128, 256, 512};
    if (random.chance(0.4)) return random.between(0, most);
    const int step = random.one_of(kSteps);
    return std::clamp(random.between(0, most / step + 1) * step + random.between(-1, 1), 0, most);
}

std::int64_t malformed_offset(Random& random) {
    constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
    const std::int64_t near = random.between(0, 3000);
    const std::int64_t offsets[] = {-1,          -near,        near,  near * 1000,    kFar,
                                    kFar - near, -kFar + near, -kFar, -kFar - 1,      kFar / 2,
                                    1ll << 31,   1ll << 32,    -near, (1ll << 32) + 5};
    return random.one_of(offsets);
}

std::vector<Row> hostile_rows(Random& random, int heads, std::int64_t budget,
                              const Hostility& hostility) {
    std::vector<Row> rows;
    rows.push_back(make_row(random, MaskKind::causal, heads, 0, 37));
    rows.push_back(make_row(random, MaskKind::causal, heads, 2, 0));
    rows.push_back(make_row(random, MaskKind::causal, heads, 5, 3, hostility.spread));
    while (budget > 0) {
        rows.push_back(hostile_row(random, heads, budget, hostility));
        budget -= std::int64_t{rows.back().tokens} * heads * (rows.back().keys + 1);
    }
    return rows;
}

bool sees(const Row& row, int i, int c) {
    switch (row.mask) {
        case MaskKind::full:
            return true;
        case MaskKind::causal:
            return c < row.keys - (row.tokens - 1) + i;
        case MaskKind::tree: {
            const int bit = c - (row.keys - row.tail);
            return bit < 0 || ((row.words[static_cast<std::size_t>(i)] >> bit) & 1) != 0;
        }
        case MaskKind::dense:
            return row.dense[static_cast<std::size_t>(i * row.keys + c)] != 0;
    }
    return false;
}

Row compacted(const Row& row, int heads, int i, std::int64_t columns) {
    Row alone;
    alone.tokens = alone.tail = 1;
    alone.words = {1};
    const std::int64_t width = heads * columns;
    alone.query.assign(row.query.begin() + i * width, row.query.begin() + (i + 1) * width);
    for (int c = 0; c < row.keys; ++c) {
        if (!sees(row, i, c)) continue;
        alone.key.insert(alone.key.end(), row.key.begin() + c * kKey,
                         row.key.begin() + (c + 1) * kKey);
        ++alone.keys;
    }
    alone.global_keys = alone.keys;
    return alone;
}

Row chunk_of(const Row& whole, int heads, int first, int count, std::int64_t columns) {
    Row row;
    row.tokens = row.tail = count;
    row.keys = whole.keys - whole.tokens + first + count;
    row.global_keys = row.keys;
    row.key.assign(whole.key.begin(), whole.key.begin() + row.keys * kKey);
    row.query.assign(whole.query.begin() + first * heads * columns,
                     whole.query.begin() + (first + count) * heads * columns);
    row.words.resize(static_cast<std::size_t>(count));
    return row;
}

}  // namespace espalier::conformance
