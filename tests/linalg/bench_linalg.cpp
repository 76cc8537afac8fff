// SPDX-License-Identifier: Apache-2.0
// Prints how near the products come to this machine's bounds. Bandwidth and peak are measured in
// the same run, right before each line, because a shared machine's speed drifts.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <vector>

#include "base/cpu_device.hpp"
#include "linalg/machine_peaks.hpp"
#include "linalg/packed.hpp"
#include "linalg/product.hpp"

namespace espalier::linalg {
namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
    std::int64_t count, n, k;
};

constexpr Shape kShapes[] = {{1, 12288, 512}, {1, 1024, 16384}, {1, 3072, 1024}, {128, 512, 128}};
constexpr std::int64_t kCopiesBytes = 256 << 20;  // weights in rotation: more than any cache holds

// Matrices of random bits that are small numbers in every format.
struct Weights {
    std::vector<Weight> copies;

    Weights(CpuDevice& device, const Shape& shape, const WeightFormat& format) {
        const auto bytes = static_cast<std::size_t>(format.bytes(shape.count * shape.n * shape.k));
        std::vector<std::byte> stored(bytes);
        std::uint32_t state = 1;
        for (std::size_t i = 0; i < bytes; ++i) {
            state = state * 1664525u + 1013904223u;
            const bool top = (i + 1) % static_cast<std::size_t>(format.bytes(1)) == 0;
            stored[i] = static_cast<std::byte>(top ? 0x38 + (state >> 31) * 0x80 : state >> 24);
        }
        std::int64_t groups_n = 0, groups_k = 0;
        if (format.scaled()) {
            groups_n = (shape.n + format.group_n - 1) / format.group_n;
            groups_k = (shape.k + format.group_k - 1) / format.group_k;
        }
        const DType scale_type = dtype_of(format.scale);
        std::vector<std::byte> scales(static_cast<std::size_t>(groups_n * groups_k) *
                                      bytes_of(scale_type));
        for (std::int64_t i = 0; i < groups_n * groups_k; ++i)
            store_element(scales.data(), scale_type, i, 0.1f);
        std::vector<WeightSource> sources;
        for (std::int64_t s = 0; s < shape.count; ++s)
            sources.push_back({.data = stored.data() + format.bytes(s * shape.n * shape.k),
                               .format = format,
                               .n = shape.n,
                               .k = shape.k,
                               .row_stride = shape.k,
                               .scales = scales.data(),
                               .scale_stride = groups_k});
        std::vector<std::span<const WeightSource>> stack;
        for (const WeightSource& source : sources) stack.emplace_back(&source, 1);
        const auto wanted =
            std::max<std::int64_t>(1, kCopiesBytes / static_cast<std::int64_t>(bytes));
        for (std::int64_t i = 0; i < wanted; ++i)
            copies.push_back(pack_panels(device, stack).value());
    }
};

// The time in the fast tenth: on a machine shared with others the median measures them.
double typical(std::vector<double> values) {
    const auto at = static_cast<std::ptrdiff_t>(values.size() / 10);
    std::nth_element(values.begin(), values.begin() + at, values.end());
    return values[static_cast<std::size_t>(at)];
}

// One thread is timed by its own processor time, several by the wall.
double now_seconds(const ThreadPool& pool) {
    timespec time{};
    clock_gettime(pool.workers() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void measure(CpuDevice& device, const Products& products, const Shape& shape,
             const WeightFormat& format, const Weights& weights, std::int64_t rows) {
    const std::int64_t x_cols = shape.count * shape.k, y_cols = shape.count * shape.n;
    const DType x_dtype = format.input();
    ThreadPool& pool = device.pool();
    Buffer x = device.allocate(static_cast<std::size_t>(rows * x_cols) * 4).value();
    Buffer y = device.allocate(static_cast<std::size_t>(rows * y_cols) * 4).value();
    std::fill_n(x.as<std::uint16_t>(), rows * x_cols * 2, std::uint16_t{0x3c00});
    const Matrix x_view{x.data(), x_dtype, rows, x_cols, x_cols},
        y_view{y.data(), DType::f32, rows, y_cols, y_cols};

    const PackedView view(weights.copies.front().view());
    const double bytes = static_cast<double>(view.count * view.panels() *
                                             (view.panel_bytes() + view.panel_scale_bytes()));
    const double flops = 2.0 * static_cast<double>(rows * shape.count * shape.n * shape.k);
    std::vector<double> seconds, read_seconds;
    const double dot = x_dtype == DType::bf16 ? measured_bf16_peak(pool, products.variant())
                                              : measured_f32_peak(pool, products.variant());
    std::size_t next = 0;
    const auto until = Clock::now() + std::chrono::milliseconds(150);
    while (seconds.size() < 5 || Clock::now() < until) {
        // Reading and the product take turns, so that both see the same neighbours.
        const std::size_t half = weights.copies.size() / 2;
        const PackedView other(weights.copies[(next + half) % weights.copies.size()].view());
        const auto other_bytes =
            static_cast<std::size_t>(other.count * other.panels() * other.panel_bytes());
        // Timed by the same clock as the product; per byte, of the whole MiB it reads.
        const double read_begin = now_seconds(pool);
        measured_read_bandwidth(pool, products.variant(), {other.data, other_bytes}, 1);
        read_seconds.push_back((now_seconds(pool) - read_begin) /
                               static_cast<double>(other_bytes >> 20 << 20));
        const WeightView& w = weights.copies[next++ % weights.copies.size()].view();
        const double begin = now_seconds(pool);
        if (shape.count == 1)
            products.product(pool, x_view, w, y_view);
        else
            products.stacked(pool, x_view, shape.k, w, y_view, shape.n);
        seconds.push_back(now_seconds(pool) - begin);
    }
    const double time = typical(seconds), read = 1 / typical(read_seconds);
    fmt::print(
        "| {:>4} | {:>3} × {:>5} × {:>5} | {:>4} | {} | {:>8.3f} | {:>6.1f} | {:>4.0f} % | "
        "{:>6.1f} | {:>4.0f} % |\n",
        name_of(format.code), shape.count, shape.n, shape.k, rows, pool.workers(), time * 1e3,
        bytes / time / 1e9, 100 * bytes / time / read, flops / time / 1e9,
        100 * flops / time / dot);
    std::fflush(stdout);
}

}  // namespace
}  // namespace espalier::linalg

// bench_linalg [threads [weight type]]: all of them when not given.
int main(int argc, char** argv) {
    using namespace espalier;
    using namespace espalier::linalg;
    const CpuVariant variant = chosen_cpu_variant().value();
    const Products products(variant);
    fmt::print(
        "{}\n\n| weights | shape | rows | threads | ms | GB/s | of read bandwidth | GFLOP/s | of "
        "peak |\n"
        "|---|---|---|---|---|---|---|---|---|\n",
        name_of(variant));
    for (const WeightFormat& format :
         {WeightFormat{.code = WeightCode::bf16}, kFp8Blocks,
          grouped(WeightCode::int8, 32, ScaleType::bf16),
          grouped(WeightCode::int4, 32, ScaleType::bf16), kNvfp4, WeightFormat{}}) {
        if (argc > 2 && name_of(format.code) != argv[2]) continue;
        for (const Shape& shape : kShapes) {
            CpuDevice packer(2);
            const Weights weights(packer, shape, format);
            for (const int threads : {1, 2}) {
                if (argc > 1 && std::atoi(argv[1]) != threads) continue;
                CpuDevice device(threads);
                for (const std::int64_t rows : {1, 2, 4, 8, 16, 64, 512})
                    measure(device, products, shape, format, weights, rows);
            }
        }
    }
}
