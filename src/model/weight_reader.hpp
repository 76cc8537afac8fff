// SPDX-License-Identifier: Apache-2.0
// Reads tensors of a checkpoint into a backend's weights: shapes and dtypes checked, scales kept
// beside their weights, the mapped pages let go once packed. Weights::load says what is read; this
// says how.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/device.hpp"
#include "base/error.hpp"
#include "base/thread_pool.hpp"
#include "checkpoint/quantization.hpp"
#include "linalg/weight.hpp"
#include "model/stored_matrix.hpp"
#include "model/weights.hpp"
#include "ops/ops.hpp"

namespace espalier::model {

// The parts of LoadOptions that decide how weights are read; borrowed.
struct ReadWays {
    std::optional<WeightCode> rounding = {};
    std::optional<WeightCode> head_rounding = {};
    NumberMode activations = NumberMode::own;
    WeightShelf* shelf = nullptr;
    ExpertReads* expert_reads = nullptr;
};

class WeightReader {
  public:
    WeightReader(const checkpoint::Checkpoint& checkpoint, Device& device,
                 const ops::Backend& backend, const Progress& progress, const ReadWays& ways = {});

    // `name` without ".weight"; [n, k].
    Expected<StoredMatrix> stored(const std::string& name, std::int64_t n, std::int64_t k) const;
    // Rows of kv_b of the attention `name` (with its last dot), [heads · (nope + value), latent],
    // which products read along both axes. It is rounded to bf16 where its scales are for groups
    // along one axis, where a head's pieces would not begin at a block of scales (FP8 heads of 192
    // + 256 rows in blocks of 128), and where LoadOptions::rounding replaces FP8.
    Expected<StoredMatrix> kv_b(const std::string& name, const linalg::Part& rows) const;
    // The format in which kv_b() is packed.
    Expected<WeightFormat> kv_b_format(const std::string& name) const;
    // The weight of that name on the shelf, or else what `make` packs. shape: packed format, count,
    // n, k.
    Expected<Weight> shelved(const std::string& name, const linalg::WeightView& shape,
                             const std::function<Expected<Weight>()>& make);
    // The same for a part of it, which `make` packs.
    Expected<Weight> shelved_part(const std::string& name, const linalg::WeightView& whole,
                                  const linalg::StackPart& part,
                                  const std::function<Expected<Weight>()>& make);
    Expected<Weight> matrix(const std::string& name, std::int64_t n, std::int64_t k);
    // Rows of the target's or an MTP layer's.
    Expected<Weight> head(const std::string& name, std::int64_t n, std::int64_t k,
                          const linalg::Part& rows);
    struct Part {
        std::string name;
        std::int64_t n;
    };
    // Part of a stack that is read; none: all matrices, rows of each Part, inputs.
    struct Selection {
        std::optional<std::vector<std::int64_t>> matrices;
        std::optional<linalg::Part> rows;
        std::optional<linalg::Part> inputs;
    };
    enum class Join : std::uint8_t { rows, gated };  // gated: gate and up of a gated product
    // A stack (experts): matrix i joins `parts[i]`, of one k, along n. Where nothing is selected, a
    // weight without data whose view has the format and shape.
    Expected<Weight> stack(const std::vector<std::vector<Part>>& parts, std::int64_t k,
                           Join join = Join::rows, const Selection& selection = {});
    // Rows of a matrix, or the inputs of some of its segments.
    Expected<Weight> rows_of(const std::string& name, std::int64_t n, std::int64_t k,
                             const linalg::Part& rows);
    Expected<Weight> segments_of(const std::string& name, std::int64_t n, std::int64_t k,
                                 const linalg::InputSegments& segments);
    // Products with what is read from here on, of drafts, read the inputs that its format names.
    void keep_activations() { ways_.activations = NumberMode::own; }
    // Packs matrices as they are, whatever LoadOptions::rounding says.
    Expected<Weight> pack(const std::vector<std::vector<linalg::WeightSource>>& stack,
                          Join join = Join::rows);
    // Both up-projections of all heads as one weight, from bf16 (each number rounded once).
    Expected<Weight> up_projection(const StoredMatrix& matrix, std::int64_t heads);
    // Widened to f32; [n].
    Expected<DeviceVector> vector(const std::string& name, std::int64_t n);
    // Embedding where the device reads it: in the mapped file, or in memory of its own.
    Expected<Embedding> embedding(const std::string& name, std::int64_t vocabulary,
                                  std::int64_t hidden);
    // The router is computed in f32 whatever its stored dtype: [n, k] widened.
    Expected<Weight> widened(const std::string& name, std::int64_t n, std::int64_t k);

    // Scale of the attention `name`, with its last dot.
    Expected<std::optional<float>> kv_scale(const std::string& name) const {
        return checkpoint::kv_scale_of(checkpoint_, name);
    }

    bool joins_up_projections() const;
    ExpertReads* expert_reads() const { return ways_.expert_reads; }
    std::uint64_t packed_bytes() const { return packed_bytes_; }
    // A stored tensor has been read: count its bytes and let its pages go.
    void release(const checkpoint::Tensor& tensor);
    void release(const StoredMatrix& matrix);
    bool has(const std::string& name) const { return checkpoint_.has(name); }
    bool has_matrix(const std::string& name) const {
        return checkpoint::has_matrix(checkpoint_, name);
    }

  private:
    // The code that weights become at load, and the option that asks for it.
    struct Rounding {
        WeightCode code;
        const char* option;
    };
    // Every matrix of the stack, all of one format.
    Expected<std::vector<std::vector<StoredMatrix>>> stored_stack(
        const std::vector<std::vector<Part>>& parts, std::int64_t k,
        const Selection& selection) const;
    bool widens_kv_b(const WeightFormat& format) const;
    ThreadPool& pool();
    Expected<Weight> read_stack(const std::vector<std::vector<Part>>& parts, std::int64_t k,
                                Join join, const Selection& selection,
                                const std::optional<Rounding>& rounding);
    Expected<Weight> pack_rounded(const std::vector<std::vector<StoredMatrix>>& matrices, Join join,
                                  const Rounding& rounding);
    Expected<Weight> pack_stored(const std::vector<std::vector<StoredMatrix>>& matrices, Join join);
    Expected<Weight> pack_unpacked(const std::vector<std::vector<StoredMatrix>>& matrices,
                                   Join join);
    tl::unexpected<Error> named(const Error& error,
                                const std::vector<std::vector<StoredMatrix>>& matrices,
                                const std::optional<Rounding>& rounding);

    const checkpoint::Checkpoint& checkpoint_;
    Device& device_;
    const ops::Backend& backend_;
    const Progress& progress_;
    ReadWays ways_;
    std::unique_ptr<ThreadPool> pool_;  // of rounding and of unpacking
    std::uint64_t done_ = 0;
    std::uint64_t total_ = 0;
    std::uint64_t packed_bytes_ = 0;
};

}  // namespace espalier::model
