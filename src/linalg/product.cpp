// SPDX-License-Identifier: Apache-2.0
// Cuts products into tasks. All three kinds of product become a list of segments (a matrix and the
// output rows that use it); a segment is cut into units of (chunk of panels) × (block of rows), and
// a task is a few units. No cut changes bits: a unit carries every chain from the first k of a
// segment of the inputs to the last, and sums that pause between two blocks of k pause in f32,
// which is what they are.
#include "linalg/product.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "base/check.hpp"
#include "linalg/microkernels.hpp"
#include "linalg/rounded_rows.hpp"

namespace espalier::linalg {
namespace {

constexpr std::int64_t kRowBlock =
    192;  // rows per unit: a chunk of weights is read from memory once for all
constexpr std::int64_t kManyRowsChunk = 16;  // panels per unit for tall products
constexpr std::int64_t kAccFloats = kRowBlock * kManyRowsChunk * kPanel;  // 192 KiB of running sums
constexpr std::int64_t kTaskBytes = 256 << 10;  // weights per task when memory is the bound
constexpr std::int64_t kTasksPerWorker =
    8;                                   // or fewer bytes, so that the last task is not waited for
constexpr std::int64_t kLeastChunk = 8;  // panels that one row keeps in flight
constexpr std::size_t kSegments = 256;   // per run of the pool

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Segment {
    std::int64_t matrix = 0;
    std::int64_t first_row = 0;
    std::int64_t rows = 0;
    std::int64_t first_unit = 0;
};

struct Job {
    const Microkernels& microkernels;
    const WeightKernels& kernels;
    Matrix x, y;
    PackedView w;
    std::int64_t x_step = 0, y_step = 0;  // columns per matrix of the stack
    const std::int32_t* source_row = nullptr;
    Store store = Store::assign;
    bool apart = false;      // sums of segments are not added: each has rows of its own
    std::int64_t chunk = 1;  // panels per unit
    const RoundedBlock* rounded = nullptr;  // rows of x, where they were rounded for all units
};

// Piece `index` of `length` cut into `pieces` almost equal ones.
struct Piece {
    std::int64_t begin, end;
};
Piece piece_of(std::int64_t length, std::int64_t pieces, std::int64_t index) {
    return {length * index / pieces, length * (index + 1) / pieces};
}

struct Unit {
    std::int64_t matrix;
    Piece rows;    // of y
    Piece panels;  // of the matrix
    Piece k = {};  // of the segment that is being computed
    std::int32_t segment = 0;
};

Unit unit_at(const Job& job, std::span<const Segment> segments, std::int64_t index) {
    const auto after =
        std::upper_bound(segments.begin(), segments.end(), index,
                         [](std::int64_t unit, const Segment& s) { return unit < s.first_unit; });
    const Segment& segment = *(after - 1);
    const std::int64_t chunks = ceil_div(job.w.panels(), job.chunk);
    const std::int64_t row_blocks = ceil_div(segment.rows, kRowBlock);
    const std::int64_t local =
        index - segment.first_unit;  // rows run fastest: they share the weights
    Piece rows = piece_of(segment.rows, row_blocks, local % row_blocks);
    rows.begin += segment.first_row;
    rows.end += segment.first_row;
    return {segment.matrix, rows, piece_of(job.w.panels(), chunks, local / row_blocks)};
}

// Rows that widened weights serve before others take their place: 24 KiB of x beside 8 KiB of them.
constexpr std::int64_t kWidenedRows = 42;
static_assert(kWidenedRows * kWidenedTileStride <= kTileBytes);

struct Scratch {
    alignas(64) std::byte tile[kTileBytes + kMaxTileRows * 64];
    alignas(64) float acc[kAccFloats];
    alignas(64) float widened[kDepthUnit * kPanel];  // one panel
    // Sums of x of weights with zero points: a row's for each group, two bytes of a tile for each x
    // at least.
    float x_sums[kTileBytes / 2 / kLeastScaleGroup];
};

// Depth of some k, with the padding behind the last of all.
std::int64_t padded_depth(const PackedView& w, Piece k) {
    return (k.end == w.k ? w.k_padded() : k.end) - k.begin;
}

// The sum of x over each group of some k, one chain for each row and group. Eight groups run side
// by side, since the next x of one waits for the sum before it.
void sum_groups(const Job& job, const Unit& unit, Piece rows, Piece k, float* sums) {
    constexpr std::int64_t kAtOnce = 8;
    const std::int64_t group = job.w.format.group_k, groups = ceil_div(k.end - k.begin, group);
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        const std::int64_t source = job.source_row == nullptr ? row : job.source_row[row];
        const Bf16* x = job.x.row<Bf16>(source) + unit.matrix * job.x_step + k.begin;
        float* of_row = sums + (row - rows.begin) * groups;
        std::int64_t first = 0;
        for (; (first + kAtOnce) * group <= k.end - k.begin; first += kAtOnce) {
            float side[kAtOnce] = {};
            for (std::int64_t i = 0; i < group; ++i)
                for (std::int64_t at = 0; at < kAtOnce; ++at)
                    side[at] += to_float(x[(first + at) * group + i]);
            std::copy(side, side + kAtOnce, of_row + first);
        }
        for (; first < groups; ++first) {
            const std::int64_t end = std::min(k.end - k.begin, (first + 1) * group);
            float sum = 0.0f;
            for (std::int64_t i = first * group; i < end; ++i) sum += to_float(x[i]);
            of_row[first] = sum;
        }
    }
}

// Rows [rows.begin, rows.end) of x, k [begin, begin + depth), into the tile; with zero points their
// sums too.
void fill_tile(const Job& job, const Unit& unit, Piece rows, Piece k, std::int64_t stride,
               std::byte* tile, float* x_sums) {
    const auto element = static_cast<std::int64_t>(bytes_of(job.x.dtype));
    const std::int64_t padded = padded_depth(job.w, k);
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        const std::int64_t source = job.source_row == nullptr ? row : job.source_row[row];
        if (job.rounded != nullptr) {
            std::memcpy(tile + (row - rows.begin) * stride,
                        job.rounded + source * rounded_blocks(job.w.k) + k.begin / kRoundedInputs,
                        static_cast<std::size_t>(rounded_blocks(padded)) * sizeof(RoundedBlock));
            continue;
        }
        const std::int64_t at = source * job.x.stride + unit.matrix * job.x_step + k.begin;
        job.kernels.fill_row(job.x.data + at * element, k.end - k.begin, padded,
                             tile + (row - rows.begin) * stride);
    }
    if (job.w.format.zero_points && !job.kernels.rounds_x) sum_groups(job, unit, rows, k, x_sums);
}

// Sums of some rows of a unit: [panels][rows][16] for each tile of rows.
float* sums_of(const Unit& unit, Piece rows, Scratch& scratch) {
    return scratch.acc +
           (rows.begin - unit.rows.begin) * (unit.panels.end - unit.panels.begin) * kPanel;
}

// A tile's call over some panels of its unit and some k.
TileCall call_of(const PackedView& matrix, const Unit& unit, Piece rows, Piece panels, Piece k,
                 Scratch& scratch) {
    TileCall call;
    call.x = scratch.tile;
    call.w =
        matrix.data + panels.begin * matrix.panel_bytes() + matrix.format.bytes(k.begin * kPanel);
    call.panel_stride = matrix.panel_bytes();
    call.panels = panels.end - panels.begin;
    call.depth = padded_depth(matrix, k);
    if (matrix.format.scaled()) {
        call.group = matrix.format.group_k;
        call.bf16_scales = matrix.format.scale == ScaleType::bf16;
        call.scale_stride = matrix.panel_scale_bytes();
        call.zero_points = matrix.format.zero_points;
        call.x_sums = scratch.x_sums;
        call.scales = matrix.scales + panels.begin * call.scale_stride +
                      k.begin / call.group * matrix.group_scale_bytes();
    }
    call.acc = sums_of(unit, rows, scratch) +
               (panels.begin - unit.panels.begin) * (rows.end - rows.begin) * kPanel;
    call.first = k.begin == unit.k.begin;
    return call;
}

// A segment's sums behind those of the segments before it are added to these.
void store_tile(const Job& job, const Unit& unit, Piece rows, const float* acc) {
    const Store store = unit.segment == 0 || job.apart ? job.store : Store::accumulate;
    const std::int64_t first_row = job.apart ? unit.segment * job.x.rows : 0;
    const std::int64_t count = rows.end - rows.begin;
    const std::int64_t first_column = unit.panels.begin * kPanel;
    const std::int64_t columns = std::min(job.w.n, unit.panels.end * kPanel) - first_column;
    const auto element = static_cast<std::int64_t>(bytes_of(job.y.dtype));
    for (std::int64_t row = rows.begin; row < rows.end; ++row) {
        const std::int64_t at =
            (first_row + row) * job.y.stride + unit.matrix * job.y_step + first_column;
        job.microkernels.store_row(acc + (row - rows.begin) * kPanel, count * kPanel, columns,
                                   job.y.data + at * element, job.y.dtype, store);
    }
}

// A unit's rows in tiles of almost equal height.
struct Tiles {
    Piece rows;
    std::int64_t count;

    Piece at(std::int64_t index) const {
        const Piece piece = piece_of(rows.end - rows.begin, count, index);
        return {rows.begin + piece.begin, rows.begin + piece.end};
    }
    int tallest() const { return static_cast<int>(ceil_div(rows.end - rows.begin, count)); }
};

// k outermost, then tiles of rows: the chunk's weights of one k block serve all tiles from the
// second-level cache.
void multiply(const Job& job, const PackedView& matrix, const Unit& unit, const Tiles& tiles,
              Scratch& scratch) {
    const std::int64_t depth = tile_depth(tiles.tallest(), job.kernels.bytes_per_k);
    for (std::int64_t begin = unit.k.begin; begin < unit.k.end; begin += depth) {
        const Piece k{begin, std::min(unit.k.end, begin + depth)};
        for (std::int64_t tile = 0; tile < tiles.count; ++tile) {
            const Piece rows = tiles.at(tile);
            const auto height = static_cast<int>(rows.end - rows.begin);
            fill_tile(job, unit, rows, k, tile_stride(height, job.kernels.bytes_per_k),
                      scratch.tile, scratch.x_sums);
            const TileCall call = call_of(matrix, unit, rows, unit.panels, k, scratch);
            job.kernels.tile[static_cast<std::size_t>(height)](call);
        }
    }
}

// The same over weights that become f32 first, a group of k of one panel at a time, for the tiles
// [first, end).
void multiply_widened(const Job& job, const PackedView& matrix, const Unit& unit,
                      const Tiles& tiles, Piece some, Scratch& scratch) {
    const WidenedKernels& kernels = job.kernels.widened;
    const Piece all{tiles.at(some.begin).begin, tiles.at(some.end - 1).end};
    for (std::int64_t begin = unit.k.begin; begin < unit.k.end; begin += kDepthUnit) {
        const Piece k{begin, std::min(unit.k.end, begin + kDepthUnit)};
        fill_tile(job, unit, all, k, kWidenedTileStride, scratch.tile, scratch.x_sums);
        const std::int64_t groups = ceil_div(k.end - k.begin, matrix.format.group_k);
        for (std::int64_t panel = unit.panels.begin; panel < unit.panels.end; ++panel) {
            for (std::int64_t tile = some.begin; tile < some.end; ++tile) {
                const Piece rows = tiles.at(tile);
                TileCall call = call_of(matrix, unit, rows, {panel, panel + 1}, k, scratch);
                if (tile == some.begin) kernels.widen(call.w, call.depth, scratch.widened);
                call.x = scratch.tile + (rows.begin - all.begin) * kWidenedTileStride;
                call.x_sums += (rows.begin - all.begin) * groups;
                call.w = reinterpret_cast<const std::byte*>(scratch.widened);
                kernels.tile[static_cast<std::size_t>(rows.end - rows.begin)](call);
            }
        }
    }
}

// One segment of a unit.
void run_segment(const Job& job, const PackedView& matrix, const Unit& unit, const Tiles& tiles,
                 Scratch& scratch) {
    const int from = job.kernels.widened.from_rows;
    if (from == 0 || unit.rows.end - unit.rows.begin < from) {
        multiply(job, matrix, unit, tiles, scratch);
    } else {
        const std::int64_t at_once = kWidenedRows / tiles.tallest();
        for (std::int64_t tile = 0; tile < tiles.count; tile += at_once)
            multiply_widened(job, matrix, unit, tiles,
                             {tile, std::min(tiles.count, tile + at_once)}, scratch);
    }
    for (std::int64_t tile = 0; tile < tiles.count; ++tile)
        store_tile(job, unit, tiles.at(tile), sums_of(unit, tiles.at(tile), scratch));
}

void run_unit(const Job& job, Unit unit, Scratch& scratch) {
    const PackedView matrix = job.w.at(unit.matrix);
    const Tiles tiles{unit.rows, ceil_div(unit.rows.end - unit.rows.begin, job.kernels.max_rows)};
    const InputSegments& cut = matrix.segments;
    for (unit.segment = 0; unit.segment < cut.count; ++unit.segment) {
        const std::int64_t begin = unit.segment * cut.inputs;
        unit.k = {begin, cut.count == 1 ? matrix.k : std::min(matrix.k, begin + cut.inputs)};
        run_segment(job, matrix, unit, tiles, scratch);
    }
}

// Panels per unit: bounded by the running sums, by the bytes a task should read, and by sharing
// among workers.
std::int64_t choose_chunk(const PackedView& w, std::int64_t most_rows,
                          std::int64_t units_of_one_chunk, int workers) {
    const std::int64_t rows = std::min(most_rows, kRowBlock);
    std::int64_t chunk = std::min(w.panels(), kAccFloats / (rows * kPanel));
    chunk = std::min(chunk, rows > kMaxTileRows
                                ? kManyRowsChunk
                                : std::max<std::int64_t>(1, kTaskBytes / w.panel_bytes()));
    chunk = std::max(chunk, std::min(kLeastChunk, w.panels()));
    if (workers == 1) return chunk;
    while (chunk > kLeastChunk / 2 &&
           units_of_one_chunk * ceil_div(w.panels(), chunk) < kTasksPerWorker * workers)
        chunk = ceil_div(chunk, 2);
    return chunk;
}

void run_segments(ThreadPool& pool, Job& job, std::span<Segment> segments) {
    std::int64_t most_rows = 0, row_blocks = 0;
    for (const Segment& segment : segments) {
        most_rows = std::max(most_rows, segment.rows);
        row_blocks += ceil_div(segment.rows, kRowBlock);
    }
    if (most_rows == 0) return;
    job.chunk = choose_chunk(job.w, most_rows, row_blocks, pool.workers());
    const std::int64_t chunks = ceil_div(job.w.panels(), job.chunk);
    std::int64_t units = 0;
    for (Segment& segment : segments) {
        segment.first_unit = units;
        units += ceil_div(segment.rows, kRowBlock) * chunks;
    }
    const std::int64_t unit_bytes = job.w.panel_bytes() * job.chunk;
    const std::int64_t per_task = std::clamp<std::int64_t>(
        std::min(kTaskBytes / unit_bytes, units / (kTasksPerWorker * pool.workers())), 1, units);
    pool.run(ceil_div(units, per_task), [&](std::int64_t task, int) {
        Scratch scratch;  // uninitialised: tiles and sums are written before they are read
        const std::int64_t end = std::min(units, (task + 1) * per_task);
        for (std::int64_t unit = task * per_task; unit < end; ++unit)
            run_unit(job, unit_at(job, segments, unit), scratch);
    });
}

void check_types(const Matrix& x, const WeightView& w, const Matrix& y, Store store) {
    CHECK(x.dtype == w.format.input(), "{} weights take x in {}, not {}", name_of(w.format.code),
          name_of(w.format.input()), name_of(x.dtype));
    CHECK(w.inputs == NumberMode::own ||
              (w.inputs == NumberMode::int8 && takes_number_mode(w.format.code)),
          "{} weights with inputs in {}", name_of(w.format.code), name_of(w.inputs));
    CHECK(y.dtype != DType::e4m3, "a product cannot be stored as e4m3");
    CHECK(store == Store::assign || y.dtype == DType::f32, "sums accumulate in f32, not {}",
          name_of(y.dtype));
    CHECK(w.segments.count == 1 || (store == Store::assign && y.dtype == DType::f32),
          "{} segments are added to nothing else and in f32, not in {}", w.segments.count,
          name_of(y.dtype));
}

// Rounds x for all units of a job whose kernels take it so, for as long as the answer lives.
RoundedRows::Taken round_rows(RoundedRows& rows, ThreadPool& pool, Job& job) {
    if (!job.kernels.rounds_x || job.x_step != 0) return {};
    RoundedRows::Taken taken = rows.take(pool, job.x, job.w.k, job.kernels.fill_row);
    job.rounded = taken.blocks();
    return taken;
}

}  // namespace

Products::Products(CpuVariant variant) : variant_(variant), rounded_(new RoundedRows) {
    microkernels_of(variant);
}
Products::~Products() = default;

Expected<void> Products::check_format(const WeightFormat& format) const {
    const int least = microkernels_of(variant_).of(format.code).least_group;
    const WeightFormat packed = packed_format(format);
    if (format.zero_points && format.code != WeightCode::int4 && format.code != WeightCode::int8)
        return fail(ErrorKind::unsupported, "{} weights with zero points: products take {} and {}",
                    name_of(format.code), name_of(WeightCode::int4), name_of(WeightCode::int8));
    // A group is a piece of a tile's depth, and whole steps of every kernel.
    const bool fits = packed.scaled()
                          ? least > 0 && packed.group_k >= least && packed.group_k % least == 0 &&
                                kDepthUnit % packed.group_k == 0
                          : least == 0;
    if (fits) return {};
    return fail(ErrorKind::unsupported, "{} weights with a scale for {} inputs: products take {}",
                name_of(format.code), format.scaled() ? format.group_k : 0,
                least == 0           ? "none"
                : least < kDepthUnit ? "one for 16, 32, 64 or a multiple of 128"
                                     : "one for 128");
}

void Products::product(ThreadPool& pool, const Matrix& x, const WeightView& w, const Matrix& y,
                       Store store) const {
    CHECK(w.count == 1 && x.cols == w.k && y.cols == w.n && x.rows == y.rows,
          "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols, w.count, w.n, w.k, y.rows,
          y.cols);
    check_types(x, w, y, store);
    const Microkernels& microkernels = microkernels_of(variant_);
    Job job{microkernels, microkernels.of(w), x, y, PackedView(w)};
    job.store = store;
    const auto rounded = round_rows(*rounded_, pool, job);
    Segment all{0, 0, x.rows};
    run_segments(pool, job, std::span(&all, 1));
}

void Products::segment_sums(ThreadPool& pool, const Matrix& x, const WeightView& w,
                            const Matrix& sums) const {
    CHECK(
        w.count == 1 && x.cols == w.k && sums.cols == w.n && sums.rows == w.segments.count * x.rows,
        "x [{}, {}], W {} × [{}, {}] in {} segments, sums [{}, {}]", x.rows, x.cols, w.count, w.n,
        w.k, w.segments.count, sums.rows, sums.cols);
    check_types(x, w, sums, Store::assign);
    const Microkernels& microkernels = microkernels_of(variant_);
    Job job{microkernels, microkernels.of(w), x, sums, PackedView(w)};
    job.apart = true;
    const auto rounded = round_rows(*rounded_, pool, job);
    Segment all{0, 0, x.rows};
    run_segments(pool, job, std::span(&all, 1));
}

void Products::stacked(ThreadPool& pool, const Matrix& x, std::int64_t x_step, const WeightView& w,
                       const Matrix& y, std::int64_t y_step) const {
    CHECK(w.count >= 1 && x.rows == y.rows && x.cols >= (w.count - 1) * x_step + w.k &&
              y.cols >= (w.count - 1) * y_step + w.n && x_step >= 0 && y_step >= 0,
          "x [{}, {}] by {}, W {} × [{}, {}], y [{}, {}] by {}", x.rows, x.cols, x_step, w.count,
          w.n, w.k, y.rows, y.cols, y_step);
    check_types(x, w, y, Store::assign);
    const Microkernels& microkernels = microkernels_of(variant_);
    Job job{microkernels, microkernels.of(w), x, y, PackedView(w), x_step, y_step};
    std::array<Segment, kSegments> segments;
    for (std::int64_t first = 0; first < w.count; first += std::int64_t{kSegments}) {
        const auto count =
            static_cast<std::size_t>(std::min<std::int64_t>(kSegments, w.count - first));
        for (std::size_t i = 0; i < count; ++i)
            segments[i] = {first + static_cast<std::int64_t>(i), 0, x.rows};
        run_segments(pool, job, std::span(segments.data(), count));
    }
}

void Products::grouped(ThreadPool& pool, const Matrix& x, const std::int32_t* source_row,
                       const std::int32_t* group_indptr, const WeightView& w,
                       const Matrix& y) const {
    CHECK(x.cols == w.k && y.cols == w.n, "x [{}, {}], W {} × [{}, {}], y [{}, {}]", x.rows, x.cols,
          w.count, w.n, w.k, y.rows, y.cols);
    CHECK(group_indptr[w.count] <= y.rows, "groups end at row {}, y has {}", group_indptr[w.count],
          y.rows);
    check_types(x, w, y, Store::assign);
    const Microkernels& microkernels = microkernels_of(variant_);
    Job job{microkernels, microkernels.of(w), x, y, PackedView(w)};
    job.source_row = source_row;
    const auto rounded = round_rows(*rounded_, pool, job);
    std::array<Segment, kSegments> segments;
    std::size_t filled = 0;
    for (std::int64_t group = 0; group < w.count; ++group) {
        const std::int64_t first = group_indptr[group], rows = group_indptr[group + 1] - first;
        CHECK(rows >= 0, "group {} ends at row {} but begins at {}", group, group_indptr[group + 1],
              first);
        if (rows > 0) segments[filled++] = {group, first, rows};
        if (filled == kSegments)
            run_segments(pool, job, std::span(segments.data(), std::exchange(filled, 0)));
    }
    run_segments(pool, job, std::span(segments.data(), filled));
}

}  // namespace espalier::linalg
