// SPDX-License-Identifier: Apache-2.0
// Weights and activations of the CUDA products' tests: made on the host as for the CPU's tests,
// copied to the GPU and back. The tests need a GPU; without one they fail and say so.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>

#include "base/device.hpp"
#include "linalg/cuda/product.hpp"
#include "linalg/grouped_weights.hpp"
#include "linalg/random_weights.hpp"
#include "support/gpu.hpp"

namespace espalier::linalg {

inline void expect_done(const Expected<void>& done) {
    EXPECT_TRUE(done) << (done ? "" : done.error().message);
}

inline std::unique_ptr<Device> gpu_or_throw() {
    auto made = make_cuda_device(test_gpu_limits());
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

// Numbers of sizes from 2⁻⁷ to 2⁶, so that the order of a sum shows in its bits; NaN between the
// rows. (Tests need hundreds of millions: std::normal_distribution would take most of their time.)
inline Activations wide_random(DType dtype, std::int64_t rows, std::int64_t cols,
                               std::int64_t stride, std::uint32_t seed) {
    Activations made(dtype, rows, cols, stride);
    std::uint32_t state = seed * 2654435761u + 1;
    for (std::int64_t row = 0; row < rows; ++row) {
        std::byte* at = made.at(row, 0);
        for (std::int64_t col = 0; col < stride; ++col, at += bytes_of(dtype)) {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            const std::uint32_t exponent = 120 + state % 13;
            const std::uint32_t bits =
                col < cols ? (state & 0x807fffffu) | exponent << 23 : 0x7fc00000u;
            if (dtype == DType::bf16) {
                const auto top = static_cast<std::uint16_t>(bits >> 16);
                std::memcpy(at, &top, sizeof(top));
            } else {
                std::memcpy(at, &bits, sizeof(bits));
            }
        }
    }
    return made;
}

// The activations' bytes on the GPU.
class DeviceActivations {
  public:
    DeviceActivations(Device& device, const Activations& host)
        : device_(device), matrix_(host.matrix()) {
        memory_ = device.allocate(host.bytes().size()).value();
        matrix_.data = memory_.data();
        upload(host);
    }
    void upload(const Activations& host) {
        expect_done(device_.upload(device_.stream(), memory_.data(), host.bytes().data(),
                                   host.bytes().size()));
    }
    void download(Activations& host) const {
        expect_done(
            device_.download(device_.stream(), host.at(0, 0), memory_.data(), host.bytes().size()));
    }
    void fill(std::byte value) {
        expect_done(device_.fill(device_.stream(), memory_.data(), value, memory_.bytes()));
    }
    const Matrix& matrix() const { return matrix_; }

  private:
    Device& device_;
    Buffer memory_;
    Matrix matrix_;
};

class DeviceInts {
  public:
    DeviceInts(Device& device, const std::vector<std::int32_t>& values)
        : device_(device), memory_(device.allocate((values.size() + 1) * 4).value()) {
        upload(values);
    }
    void upload(const std::vector<std::int32_t>& values) {
        expect_done(
            device_.upload(device_.stream(), memory_.data(), values.data(), values.size() * 4));
    }
    const std::int32_t* data() const {
        return reinterpret_cast<const std::int32_t*>(memory_.data());
    }

  private:
    Device& device_;
    Buffer memory_;
};

inline Weight pack_on(Device& device, const std::vector<WeightSource>& matrices) {
    std::vector<std::span<const WeightSource>> stack;
    for (const WeightSource& source : matrices) stack.emplace_back(&source, 1);
    auto packed = cuda::pack(device, stack);
    EXPECT_TRUE(packed) << (packed ? "" : packed.error().message);
    return std::move(packed.value());
}

// Kinds of weights in checkpoints: elements (e4m3 in blocks), or codes with scales by groups.
struct WeightKind {
    DType dtype = DType::f32;
    const GroupedKind* codes = nullptr;

    WeightKind(DType stored) : dtype(stored) {}
    WeightKind(const GroupedKind& kind) : codes(&kind) {}
    std::string name() const {
        return codes != nullptr ? codes->name : std::string(name_of(dtype));
    }
    DType input() const { return (codes != nullptr ? codes->format : format_of(dtype)).input(); }
};

inline const GroupedKind& grouped_kind(std::string_view name) {
    for (const GroupedKind& kind : kGroupedKinds)
        if (kind.name == name) return kind;
    throw std::runtime_error("no such kind: " + std::string(name));
}

// A stored tensor [n, k] of either.
class AnyTensor {
  public:
    AnyTensor(const WeightKind& kind, std::int64_t n, std::int64_t k, std::uint32_t seed)
        : n_(n), k_(k) {
        if (kind.codes != nullptr)
            grouped_.emplace(*kind.codes, n, k, seed);
        else
            stored_.emplace(kind.dtype, n, k, seed);
    }
    WeightSource rows(std::int64_t first, std::int64_t count) const {
        return grouped_ ? grouped_->rows(first, count) : stored_->view(first, 0, count, k_);
    }
    WeightSource view() const { return rows(0, n_); }
    // Scale included.
    double weight(std::int64_t row, std::int64_t col) const {
        if (grouped_) return double{grouped_->code(row, col)} * double{grouped_->scale(row, col)};
        const double code = stored_->code(row, col);
        return stored_->view().format.scaled() ? code * double{stored_->scale(row, col)} : code;
    }

  private:
    std::int64_t n_, k_;
    std::optional<StoredTensor> stored_;
    std::optional<GroupedTensor> grouped_;
};

// `count` matrices [n, k], each a view of its own rows of one tensor.
inline std::vector<WeightSource> matrices_of(const AnyTensor& tensor, std::int64_t count,
                                             std::int64_t n) {
    std::vector<WeightSource> sources;
    for (std::int64_t s = 0; s < count; ++s) sources.push_back(tensor.rows(s * n, n));
    return sources;
}

// Pairs of a routing in which expert e is e + 1 times as likely as the first, and every seventh is
// never chosen; each token has top_k different ones.
struct Routing {
    std::vector<std::int32_t> indptr, source;

    Routing(std::int64_t tokens, std::int64_t experts, std::int64_t top_k, std::uint32_t seed) {
        std::mt19937 engine(seed);
        std::vector<double> likely;
        for (std::int64_t e = 0; e < experts; ++e)
            likely.push_back(e % 7 == 3 ? 0.0 : static_cast<double>(e + 1));
        std::discrete_distribution<std::size_t> draw(likely.begin(), likely.end());
        std::vector<std::vector<std::int32_t>> of(static_cast<std::size_t>(experts));
        for (std::int64_t t = 0; t < tokens; ++t)
            for (std::int64_t chosen = 0; chosen < top_k;) {
                auto& list = of[draw(engine)];
                if (!list.empty() && list.back() == t) continue;
                list.push_back(static_cast<std::int32_t>(t));
                ++chosen;
            }
        indptr.push_back(0);
        for (const auto& list : of) {
            source.insert(source.end(), list.begin(), list.end());
            indptr.push_back(static_cast<std::int32_t>(source.size()));
        }
    }
};

}  // namespace espalier::linalg
