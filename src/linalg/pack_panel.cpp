// SPDX-License-Identifier: Apache-2.0
// Loading is bound by memory only if this is: 16-byte blocks are transposed in registers, by the
// compilers' vector extensions so that every target gets them.
#include "linalg/pack_panel.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace espalier::linalg {
namespace {

template <typename Unit>
Unit load_unaligned(const std::byte* at) {
    Unit unit;
    std::memcpy(&unit, at, sizeof(unit));
    return unit;
}

// A square block of kSide × kSide units, one 16-byte vector per row.
template <typename Unit>
struct Block {
    static constexpr int kSide = 16 / static_cast<int>(sizeof(Unit));
    typedef Unit Vector __attribute__((vector_size(16)));
    Vector rows[kSide];

    template <int... kIndex>
    static Vector low_halves(Vector a, Vector b, std::integer_sequence<int, kIndex...>) {
        return __builtin_shufflevector(a, b, (kIndex / 2 + kIndex % 2 * kSide)...);
    }
    template <int... kIndex>
    static Vector high_halves(Vector a, Vector b, std::integer_sequence<int, kIndex...>) {
        return __builtin_shufflevector(a, b, (kIndex / 2 + kSide / 2 + kIndex % 2 * kSide)...);
    }

    // A perfect shuffle of all units, log2(side) times, is the transpose.
    void transpose() {
        constexpr auto kAll = std::make_integer_sequence<int, kSide>();
        for (int round = 1; round < kSide; round *= 2) {
            Vector shuffled[kSide];
            for (int i = 0; i < kSide / 2; ++i) {
                shuffled[2 * i] = low_halves(rows[i], rows[i + kSide / 2], kAll);
                shuffled[2 * i + 1] = high_halves(rows[i], rows[i + kSide / 2], kAll);
            }
            std::copy(shuffled, shuffled + kSide, rows);
        }
    }
};

// Stored [n, k]: a transpose of up to 16 rows, in units of one step (a pair where weights are
// paired).
template <typename Unit>
void pack_rows(const PanelRun& run, std::int64_t units, Unit* panel) {
    constexpr std::int64_t kSide = Block<Unit>::kSide;
    constexpr auto kUnit = static_cast<std::int64_t>(sizeof(Unit));
    const std::int64_t row_bytes = run.source->format.bytes(run.source->row_stride);
    const std::byte* first = run.source->data + run.first_n * row_bytes;
    const std::int64_t whole_units = units / kSide * kSide;
    std::int64_t lane = 0;
    for (std::int64_t unit = 0; unit < whole_units; unit += kSide) {
        for (lane = 0; lane + kSide <= run.lanes; lane += kSide) {
            Block<Unit> block;
            for (std::int64_t i = 0; i < kSide; ++i)
                std::memcpy(&block.rows[i], first + (lane + i) * row_bytes + unit * kUnit, 16);
            block.transpose();
            for (std::int64_t i = 0; i < kSide; ++i)
                std::memcpy(panel + (unit + i) * kPanel + run.lane + lane, &block.rows[i], 16);
        }
    }
    // The rest: a few lanes of all units, and a few units of all lanes.
    const std::int64_t whole_lanes = whole_units > 0 ? lane : 0;
    for (std::int64_t rest = 0; rest < run.lanes; ++rest) {
        const std::byte* row = first + rest * row_bytes;
        for (std::int64_t unit = rest < whole_lanes ? whole_units : 0; unit < units; ++unit)
            panel[unit * kPanel + run.lane + rest] = load_unaligned<Unit>(row + unit * kUnit);
    }
}

// An odd k leaves half a pair: the last k of every lane.
template <typename Element>
void pack_last(const PanelRun& run, Element* panel) {
    const std::int64_t k = run.source->k;
    for (std::int64_t lane = 0; lane < run.lanes; ++lane) {
        const std::int64_t at = (run.first_n + lane) * run.source->row_stride + k - 1;
        panel[(k / 2 * kPanel + run.lane + lane) * 2] = load_unaligned<Element>(
            run.source->data + at * static_cast<std::int64_t>(sizeof(Element)));
    }
}

// Codes stored plus half their range become two's complement: their highest bit flips. Of k that
// are there; padding stays zero.
void take_offset_off(const PanelRun& run, std::uint8_t* panel) {
    const std::int64_t k = run.source->k;
    for (std::int64_t pair = 0; pair < (k + 1) / 2; ++pair)
        for (std::int64_t lane = run.lane; lane < run.lane + run.lanes; ++lane)
            for (std::int64_t half = 0; half < 2 && 2 * pair + half < k; ++half)
                panel[(pair * kPanel + lane) * 2 + half] ^= 0x80u;
}

// Eight codes in the order of k into the panels' order: 0 2 4 6 1 3 5 7.
constexpr std::uint32_t deal_nibbles(std::uint32_t word) {
    const std::uint32_t inner = (word ^ (word >> 4)) & 0x00f000f0u;
    word ^= inner ^ (inner << 4);
    const std::uint32_t bytes = (word ^ (word >> 8)) & 0x0000ff00u;
    return word ^ bytes ^ (bytes << 8);
}

// 4-bit codes: a transpose of words, each dealt afterwards; then the k that fill no word.
void pack_nibbles(const PanelRun& run, std::uint32_t* panel) {
    const std::int64_t words = run.source->k / 8, rest = run.source->k % 8;
    const std::uint32_t flip = run.source->offset_codes ? 0x88888888u : 0u;
    pack_rows(run, words, panel);
    for (std::int64_t word = 0; word < words; ++word) {
        std::uint32_t* lanes = panel + word * kPanel + run.lane;
        for (std::int64_t lane = 0; lane < run.lanes; ++lane)
            lanes[lane] = deal_nibbles(lanes[lane] ^ flip);
    }
    if (rest == 0) return;
    const WeightFormat& format = run.source->format;
    const std::int64_t row_bytes = format.bytes(run.source->row_stride);
    for (std::int64_t lane = 0; lane < run.lanes; ++lane) {
        std::uint32_t last = 0;
        std::memcpy(&last, run.source->data + (run.first_n + lane) * row_bytes + words * 4,
                    static_cast<std::size_t>(rest / 2));
        last ^= flip & ((1u << (4 * rest)) - 1);
        panel[words * kPanel + run.lane + lane] = deal_nibbles(last);
    }
}

// Stored [k, n]: lanes lie side by side already.
void pack_columns(const PanelRun& run, std::int64_t element, std::byte* panel) {
    const std::byte* first = run.source->data + run.first_n * element;
    for (std::int64_t k = 0; k < run.source->k; ++k)
        std::memcpy(panel + (k * kPanel + run.lane) * element,
                    first + k * run.source->row_stride * element,
                    static_cast<std::size_t>(run.lanes * element));
}

// Stored [k, n], paired: two stored rows interleave. Pair holds two Elements, the even k in its low
// half.
template <typename Element, typename Pair>
void pack_paired_columns(const PanelRun& run, Pair* panel) {
    const std::int64_t k = run.source->k;
    const std::int64_t row_bytes =
        run.source->row_stride * static_cast<std::int64_t>(sizeof(Element));
    const auto used = static_cast<std::size_t>(run.lanes) * sizeof(Element);
    const std::byte* first =
        run.source->data + run.first_n * static_cast<std::int64_t>(sizeof(Element));
    for (std::int64_t pair = 0; pair < (k + 1) / 2; ++pair) {
        Element even[kPanel] = {}, odd[kPanel] = {};
        std::memcpy(even, first + 2 * pair * row_bytes, used);
        if (2 * pair + 1 < k) std::memcpy(odd, first + (2 * pair + 1) * row_bytes, used);
        Pair both[kPanel];
        for (int lane = 0; lane < kPanel; ++lane)
            both[lane] = static_cast<Pair>(even[lane] | odd[lane] << (8 * sizeof(Element)));
        std::memcpy(panel + pair * kPanel + run.lane, both,
                    static_cast<std::size_t>(run.lanes) * sizeof(Pair));
    }
}

}  // namespace

void pack_panel_run(const PanelRun& run, std::byte* panel) {
    using std::uint16_t, std::uint32_t, std::uint8_t;
    auto* bytes = reinterpret_cast<uint8_t*>(panel);
    auto* halves = reinterpret_cast<uint16_t*>(panel);
    auto* words = reinterpret_cast<uint32_t*>(panel);
    const std::int64_t k = run.source->k;
    const int bits = facts_of(run.source->format.code).bits;
    if (bits == 4) return pack_nibbles(run, words);
    if (!paired(run.source->format.code)) {
        if (run.source->transposed) return pack_columns(run, bits / 8, panel);
        return bits == 32 ? pack_rows(run, k, words) : pack_rows(run, k, halves);
    }
    if (run.source->transposed) {
        bits == 16 ? pack_paired_columns<uint16_t>(run, words)
                   : pack_paired_columns<uint8_t>(run, halves);
    } else {
        bits == 16 ? pack_rows(run, k / 2, words) : pack_rows(run, k / 2, halves);
        if (k % 2 != 0) bits == 16 ? pack_last(run, halves) : pack_last(run, bytes);
    }
    if (run.source->offset_codes) take_offset_off(run, bytes);
}

bool holds_nan_code(const PanelRun& run) {
    const WeightSource& source = *run.source;
    if (source.format.code != WeightCode::e4m3) return false;
    const bool columns = source.transposed;
    const std::int64_t lines = columns ? source.k : run.lanes;
    const std::int64_t length = columns ? run.lanes : source.k;
    const std::byte* first = source.data + run.first_n * (columns ? 1 : source.row_stride);
    bool found = false;
    for (std::int64_t line = 0; line < lines; ++line) {
        const std::byte* codes = first + line * source.row_stride;
        // The largest magnitude, without a branch: compilers take 16 or 32 codes at once.
        auto largest = std::byte{0};
        for (std::int64_t i = 0; i < length; ++i)
            largest = std::max(largest, codes[i] & std::byte{0x7f});
        found = found || largest == std::byte{0x7f};
    }
    return found;
}

}  // namespace espalier::linalg
