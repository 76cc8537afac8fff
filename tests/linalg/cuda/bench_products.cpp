// SPDX-License-Identifier: Apache-2.0
// Prints how near the CUDA products come to an H200's bounds: 4.45 TB/s of reads, 790 TFLOPS in
// bf16. A line is one shape of DeepSeek-V2-Lite (bf16), V3 (FP8 blocks) or either in another
// format, or Kimi-K2's experts: a chain of products over weights that no cache holds, recorded as
// one graph, the best of five replays. ESPALIER_TEST_GPU as support/gpu.hpp says.
//   bench_products [part of a shape's name] [tokens …]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "linalg/cuda/fragments.hpp"
#include "linalg/cuda/product.hpp"
#include "support/gpu.hpp"

namespace espalier::linalg::cuda {
namespace {

constexpr double kBytesPerMicrosecond = 4.45e6;
constexpr std::int64_t kWeightBytes = std::int64_t{3} << 30;

enum class Kind { dense, heads, experts };

struct Shape {
    const char* name;
    WeightFormat format;
    Kind kind;
    std::int64_t count, n, k, top_k;
};

constexpr WeightFormat kBf16{.code = WeightCode::bf16};
constexpr WeightFormat kF32{.code = WeightCode::f32};
constexpr WeightFormat kInt8 = grouped(WeightCode::int8, 32, ScaleType::bf16);
constexpr WeightFormat kInt4 = grouped(WeightCode::int4, 32, ScaleType::bf16);
constexpr WeightFormat kFp4 = packed_format(kNvfp4);

constexpr Shape kShapes[] = {
    {"v2 q+kv_a", kBf16, Kind::dense, 1, 3648, 2048, 0},
    {"v2 o", kBf16, Kind::dense, 1, 2048, 2048, 0},
    {"v2 absorb", kBf16, Kind::heads, 16, 512, 128, 0},
    {"v2 value", kBf16, Kind::heads, 16, 128, 512, 0},
    {"v2 router f32", kF32, Kind::dense, 1, 64, 2048, 0},
    {"v2 gate_up", kBf16, Kind::experts, 64, 2816, 2048, 6},
    {"v2 down", kBf16, Kind::experts, 64, 2048, 1408, 6},
    {"v2 shared gate_up", kBf16, Kind::dense, 1, 5632, 2048, 0},
    {"v2 shared down", kBf16, Kind::dense, 1, 2048, 2816, 0},
    {"v2 head", kBf16, Kind::dense, 1, 102400, 2048, 0},
    {"v3 q_a+kv_a", kFp8Blocks, Kind::dense, 1, 2112, 7168, 0},
    {"v3 q_b", kFp8Blocks, Kind::dense, 1, 24576, 1536, 0},
    {"v3 absorb", kFp8Blocks, Kind::heads, 128, 512, 128, 0},
    {"v3 value", kFp8Blocks, Kind::heads, 128, 128, 512, 0},
    {"v3 o", kFp8Blocks, Kind::dense, 1, 7168, 16384, 0},
    {"v3 gate_up", kFp8Blocks, Kind::experts, 256, 4096, 7168, 8},
    {"v3 down", kFp8Blocks, Kind::experts, 256, 7168, 2048, 8},
    {"v2 int8 gate_up", kInt8, Kind::experts, 64, 2816, 2048, 6},
    {"v2 int8 down", kInt8, Kind::experts, 64, 2048, 1408, 6},
    {"v2 int4 q+kv_a", kInt4, Kind::dense, 1, 3648, 2048, 0},
    {"v2 int4 o", kInt4, Kind::dense, 1, 2048, 2048, 0},
    {"v2 int4 gate_up", kInt4, Kind::experts, 64, 2816, 2048, 6},
    {"v2 int4 down", kInt4, Kind::experts, 64, 2048, 1408, 6},
    {"v3 int8 gate_up", kInt8, Kind::experts, 256, 4096, 7168, 8},
    {"v3 int8 down", kInt8, Kind::experts, 256, 7168, 2048, 8},
    {"v3 int4 q_b", kInt4, Kind::dense, 1, 24576, 1536, 0},
    {"v3 int4 o", kInt4, Kind::dense, 1, 7168, 16384, 0},
    {"v3 int4 gate_up", kInt4, Kind::experts, 256, 4096, 7168, 8},
    {"v3 int4 down", kInt4, Kind::experts, 256, 7168, 2048, 8},
    {"v3 nvfp4 o", kFp4, Kind::dense, 1, 7168, 16384, 0},
    {"v3 nvfp4 gate_up", kFp4, Kind::experts, 256, 4096, 7168, 8},
    {"v3 nvfp4 down", kFp4, Kind::experts, 256, 7168, 2048, 8},
    {"k2 int4 gate_up", kInt4, Kind::experts, 384, 4096, 7168, 8},
    {"k2 int4 down", kInt4, Kind::experts, 384, 7168, 2048, 8},
};

template <typename T>
T value_or_throw(Expected<T> made) {
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

class Bench {
  public:
    Bench() : gpu_(value_or_throw(make_cuda_device(test_gpu_limits()))) {
        weights_ = random_memory(kWeightBytes + (std::int64_t{5} << 30), 0x3c003c00u);
        scales_ = random_memory(64 << 20, 0x3f800000u);
        x_ = random_memory(std::int64_t{1} << 30, 0x3c003c00u);
        y_ = value_or_throw(gpu_->allocate(std::size_t{4} << 30));
        ints_ = value_or_throw(gpu_->allocate(64 << 20));
        scratch_ = value_or_throw(gpu_->allocate(std::size_t{2} << 30));
    }

    void run(const Shape& shape, std::int64_t tokens) {
        Plan plan = plan_of(shape, tokens);
        const std::int64_t copies = std::max<std::int64_t>(
            1, std::min<std::int64_t>(100, kWeightBytes / plan.view.matrix_bytes / shape.count));
        const double flops = 2.0 * static_cast<double>(plan.rows * shape.n * shape.k) *
                             (shape.kind == Kind::heads ? static_cast<double>(shape.count) : 1.0);
        // A long chain of long products would only take time.
        const auto chain = static_cast<std::int64_t>(
            std::clamp(3e4 / (flops / 4e8 + plan.bytes / kBytesPerMicrosecond + 1), 2.0, 300.0));
        const auto work = [&]() -> Expected<void> {
            for (std::int64_t i = 0; i < chain; ++i) multiply(shape, plan, tokens, i % copies);
            return {};
        };
        const auto graph = value_or_throw(gpu_->record(gpu_->stream(), work));
        double best = 1e9;
        for (int repeat = 0; repeat < 6; ++repeat) {
            const double seconds = value_or_throw(graph->timed_play());
            if (repeat > 0) best = std::min(best, seconds);
        }
        const double us = best * 1e6 / static_cast<double>(chain);
        fmt::print("{:18} {:6} {:10.2f} {:7.0f} {:8.1f}\n", shape.name, tokens, us,
                   100 * plan.bytes / kBytesPerMicrosecond / us, flops / us * 1e-6);
        std::fflush(stdout);
    }

  private:
    struct Plan {
        WeightView view;
        std::int64_t rows = 0;  // of y
        double bytes = 0;       // weights that are read
        const std::int32_t *indptr = nullptr, *source = nullptr;
    };

    // Words of random bits whose numbers are of sizes near 2^-7 … 1.
    Buffer random_memory(std::int64_t bytes, std::uint32_t base) {
        Buffer memory = value_or_throw(gpu_->allocate(static_cast<std::size_t>(bytes)));
        std::vector<std::uint32_t> block(4 << 20);
        std::mt19937 engine(base);
        const bool pairs = base != 0x3f800000u;
        for (std::uint32_t& word : block)
            word = pairs ? (engine() & 0x83ff83ffu) | base : (engine() & 0x007fffffu) | base;
        const auto size = static_cast<std::int64_t>(block.size() * 4);
        for (std::int64_t at = 0; at < bytes; at += size)
            if (auto done = gpu_->upload(gpu_->stream(), memory.data() + at, block.data(),
                                         static_cast<std::size_t>(std::min(size, bytes - at)));
                !done)
                throw std::runtime_error(done.error().message);
        return memory;
    }

    Plan plan_of(const Shape& shape, std::int64_t tokens) {
        Plan plan;
        WeightView& view = plan.view;
        view.format = shape.format;
        view.layout = WeightLayout::fragments;
        view.count = shape.count;
        view.n = shape.n;
        view.k = shape.k;
        const std::int64_t chunks = tiles_of(shape.n) * chunks_of(shape.k);
        view.matrix_bytes = in_fragments(shape.format.code) ? chunks * 2 * half_bytes(shape.format)
                                                            : shape.format.bytes(shape.n * shape.k);
        view.scale_bytes = in_blocks(shape.format.code) ? chunks * 2 * 4 : 0;
        view.scales = scales_.data();
        plan.rows = tokens;
        auto active = static_cast<double>(shape.count);
        if (shape.kind == Kind::experts) {
            plan.rows = tokens * shape.top_k;
            active = route(shape, tokens, plan);
        }
        plan.bytes = active * static_cast<double>(view.matrix_bytes);
        return plan;
    }

    // Uniform routing; returns the number of experts that have tokens.
    double route(const Shape& shape, std::int64_t tokens, Plan& plan) {
        std::mt19937 engine(7);
        std::vector<std::vector<std::int32_t>> of(static_cast<std::size_t>(shape.count));
        for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t chosen = 0; chosen < shape.top_k;) {
                auto& list = of[engine() % of.size()];
                if (!list.empty() && list.back() == t) continue;
                list.push_back(static_cast<std::int32_t>(t));
                ++chosen;
            }
        std::vector<std::int32_t> ints = {0}, source;
        double active = 0;
        for (const auto& list : of) {
            active += list.empty() ? 0 : 1;
            source.insert(source.end(), list.begin(), list.end());
            ints.push_back(static_cast<std::int32_t>(source.size()));
        }
        plan.indptr = reinterpret_cast<const std::int32_t*>(ints_.data());
        plan.source = plan.indptr + ints.size();
        ints.insert(ints.end(), source.begin(), source.end());
        if (auto done = gpu_->upload(gpu_->stream(), ints_.data(), ints.data(), ints.size() * 4);
            !done)
            throw std::runtime_error(done.error().message);
        return active;
    }

    void multiply(const Shape& shape, const Plan& plan, std::int64_t tokens, std::int64_t copy) {
        WeightView view = plan.view;
        view.data = weights_.data() + copy * view.count * view.matrix_bytes;
        const std::int64_t x_cols = shape.kind == Kind::heads ? shape.count * shape.k : shape.k;
        const std::int64_t y_cols = shape.kind == Kind::heads ? shape.count * shape.n : shape.n;
        const Matrix x{x_.data(), shape.format.input(), tokens, x_cols, x_cols};
        const Matrix y{y_.data(), DType::f32, plan.rows, y_cols, y_cols};
        const Scratch scratch{scratch_.data(), scratch_.bytes()};
        if (shape.kind == Kind::dense)
            product(gpu_->stream(), x, view, y, Store::assign, {}, scratch);
        else if (shape.kind == Kind::heads)
            stacked_product(gpu_->stream(), x, shape.k, view, y, shape.n);
        else
            expert_product(gpu_->stream(), x, plan.source, plan.indptr, view, y, {}, scratch);
    }

    std::unique_ptr<Device> gpu_;
    Buffer weights_, scales_, x_, y_, ints_, scratch_;
};

}  // namespace
}  // namespace espalier::linalg::cuda

int main(int argc, char** argv) {
    using namespace espalier::linalg::cuda;
    const std::string part = argc > 1 ? argv[1] : "";
    std::vector<std::int64_t> tokens;
    for (int i = 2; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));
    if (tokens.empty()) tokens = {1, 4, 8, 16, 32, 64, 128, 512, 2048, 8192};
    Bench bench;
    fmt::print("{:18} {:>6} {:>10} {:>7} {:>8}\n", "product", "tokens", "us", "% bytes", "TFLOPS");
    for (const Shape& shape : kShapes)
        if (std::string(shape.name).find(part) != std::string::npos)
            for (const std::int64_t count : tokens) bench.run(shape, count);
}
