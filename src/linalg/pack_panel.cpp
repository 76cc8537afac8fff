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
void pack_rows(const PanelRun& run, std::int64_t units, std::int64_t element, Unit* panel) {
    constexpr std::int64_t kSide = Block<Unit>::kSide;
    constexpr auto kUnit = static_cast<std::int64_t>(sizeof(Unit));
    const std::int64_t row_bytes = run.source->row_stride * element;
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
    // What is left: a few lanes of all units, and a few units of all lanes.
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
    if (!paired(run.source->format.code)) {
        if (run.source->transposed) return pack_columns(run, bits / 8, panel);
        return bits == 32 ? pack_rows(run, k, 4, words) : pack_rows(run, k, 2, halves);
    }
    if (run.source->transposed)
        return bits == 16 ? pack_paired_columns<uint16_t>(run, words)
                          : pack_paired_columns<uint8_t>(run, halves);
    bits == 16 ? pack_rows(run, k / 2, 2, words) : pack_rows(run, k / 2, 1, halves);
    if (k % 2 == 0) return;
    bits == 16 ? pack_last(run, halves) : pack_last(run, bytes);
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
