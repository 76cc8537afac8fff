// SPDX-License-Identifier: Apache-2.0
#include "model/weight_reader.hpp"

#include <algorithm>
#include <numeric>
#include <span>
#include <thread>
#include <utility>

#include "linalg/round_weights.hpp"
#include "linalg/unpacked_blocks.hpp"
#include "ops/layer_program.hpp"

namespace espalier::model {
namespace {

using checkpoint::StoredType;

// Types in which a norm, a router or an embedding may be stored.
constexpr std::initializer_list<StoredType> kNumbers = {StoredType::bf16, StoredType::f32,
                                                        StoredType::f16, StoredType::blocks};

}  // namespace

WeightReader::WeightReader(const checkpoint::Checkpoint& checkpoint, Device& device,
                           const ops::Backend& backend, const Progress& progress,
                           const ReadWays& ways)
    : checkpoint_(checkpoint),
      device_(device),
      backend_(backend),
      progress_(progress),
      ways_(ways),
      total_(checkpoint.total_bytes()) {}

ThreadPool& WeightReader::pool() {
    if (pool_ == nullptr)
        pool_ = std::make_unique<ThreadPool>(
            static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, 64u)));
    return *pool_;
}

void WeightReader::release(const checkpoint::Tensor& tensor) {
    tensor.file->file().done_with(tensor.bytes);
    done_ += tensor.bytes.size();
    if (progress_) progress_(std::min(done_, total_), total_);
}

void WeightReader::release(const StoredMatrix& matrix) {
    release(matrix.stored.weights);
    if (matrix.other_half) release(*matrix.other_half);
}

Expected<StoredMatrix> WeightReader::stored(const std::string& name, std::int64_t n,
                                            std::int64_t k) const {
    ESPALIER_ASSIGN_OR_RETURN(checkpoint::StoredWeight found,
                              checkpoint::find_weight(checkpoint_, name, n, k));
    return StoredMatrix{.stored = std::move(found), .n = n, .k = k};
}

Expected<StoredMatrix> WeightReader::kv_b(const std::string& name, const linalg::Part& rows) const {
    const checkpoint::ModelConfig& config = checkpoint_.config();
    ESPALIER_ASSIGN_OR_RETURN(std::optional<checkpoint::KvHalves> halves,
                              checkpoint::find_kv_halves(checkpoint_, name));
    const linalg::Part all{0, config.kv_lora_rank};
    if (halves) return join_halves(std::move(*halves), config).part(rows, all);
    ESPALIER_ASSIGN_OR_RETURN(
        const StoredMatrix whole,
        stored(name + "kv_b_proj",
               config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim),
               config.kv_lora_rank));
    StoredMatrix matrix = whole.part(rows, all);
    if (widens_kv_b(matrix.stored.format)) matrix.widen();
    return matrix;
}

bool WeightReader::widens_kv_b(const WeightFormat& format) const {
    const auto [nope, value] = checkpoint_.config().head_dims();
    return format.scaled() && (format.group_n == 1 || std::gcd(nope, value) % format.group_n != 0 ||
                               ways_.rounding.has_value());
}

Expected<WeightFormat> WeightReader::kv_b_format(const std::string& name) const {
    const checkpoint::ModelConfig& config = checkpoint_.config();
    ESPALIER_ASSIGN_OR_RETURN(const std::optional<checkpoint::KvHalves> halves,
                              checkpoint::find_kv_halves(checkpoint_, name));
    if (halves) {
        const bool plain =
            !halves->key.format.scaled() && halves->key.format == halves->value.format;
        return plain ? halves->key.format : WeightFormat{.code = WeightCode::bf16};
    }
    ESPALIER_ASSIGN_OR_RETURN(
        const StoredMatrix matrix,
        stored(name + "kv_b_proj",
               config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim),
               config.kv_lora_rank));
    if (widens_kv_b(matrix.stored.format)) return WeightFormat{.code = WeightCode::bf16};
    return linalg::packed_format(matrix.stored.format);
}

Expected<Weight> WeightReader::shelved(const std::string& name, const linalg::WeightView& shape,
                                       const std::function<Expected<Weight>()>& make) {
    if (ways_.shelf != nullptr) {
        ESPALIER_ASSIGN_OR_RETURN(std::optional<Weight> found, ways_.shelf->take(name, shape));
        if (found) return std::move(*found);
    }
    ESPALIER_ASSIGN_OR_RETURN(Weight made, make());
    packed_bytes_ += made.bytes();
    if (ways_.shelf == nullptr) return made;
    return ways_.shelf->keep(name, std::move(made));
}

Expected<Weight> WeightReader::shelved_part(const std::string& name,
                                            const linalg::WeightView& whole,
                                            const linalg::StackPart& part,
                                            const std::function<Expected<Weight>()>& make) {
    std::optional<Weight> found;
    if (ways_.shelf != nullptr) {
        ESPALIER_ASSIGN_OR_RETURN(found, ways_.shelf->take_part(device_, name, whole, part));
    }
    if (!found) {
        ESPALIER_ASSIGN_OR_RETURN(found, make());
    }
    packed_bytes_ += found->bytes();
    return std::move(*found);
}

Expected<Weight> WeightReader::pack(const std::vector<std::vector<linalg::WeightSource>>& stack,
                                    Join join) {
    const std::vector<std::span<const linalg::WeightSource>> views(stack.begin(), stack.end());
    return join == Join::gated ? backend_.program().pack_gated(device_, views)
                               : backend_.pack(device_, views);
}

bool WeightReader::joins_up_projections() const {
    return backend_.program().joins_up_projections();
}

Expected<Weight> WeightReader::up_projection(const StoredMatrix& matrix, std::int64_t heads) {
    const WeightFormat bf16{.code = WeightCode::bf16};
    const bool dense = !matrix.made.empty() || matrix.stored.row_stride == matrix.k;
    if (matrix.format() != bf16 || !dense) {
        StoredMatrix wide = matrix;
        wide.widen();
        return up_projection(wide, heads);
    }
    return backend_.program().pack_up_projection(device_, matrix.whole(), heads);
}

Expected<std::vector<std::vector<StoredMatrix>>> WeightReader::stored_stack(
    const std::vector<std::vector<Part>>& parts, std::int64_t k, const Selection& selection) const {
    const std::size_t count = selection.matrices ? selection.matrices->size() : parts.size();
    const linalg::Part inputs = selection.inputs.value_or(linalg::Part{0, k});
    std::vector<std::vector<StoredMatrix>> matrices(count);
    for (std::size_t i = 0; i < count; ++i) {
        const std::size_t from =
            selection.matrices ? static_cast<std::size_t>((*selection.matrices)[i]) : i;
        for (const Part& part : parts[from]) {
            ESPALIER_ASSIGN_OR_RETURN(const StoredMatrix matrix, stored(part.name, part.n, k));
            matrices[i].push_back(
                matrix.part(selection.rows.value_or(linalg::Part{0, part.n}), inputs));
        }
        const checkpoint::StoredWeight& first = matrices.front().front().stored;
        for (const StoredMatrix& matrix : matrices[i])
            if (matrix.stored.format != first.format ||
                (matrix.stored.block == BlockCode::none) != (first.block == BlockCode::none))
                return fail(ErrorKind::unsupported,
                            "{} is {} but {}, which is computed with it, is {}",
                            matrix.stored.weights.name, matrix.stored.weights.type_name(),
                            first.weights.name, first.weights.type_name());
    }
    return matrices;
}

Expected<Weight> WeightReader::pack_stored(const std::vector<std::vector<StoredMatrix>>& matrices,
                                           Join join) {
    if (matrices.front().front().is_unpacked()) return pack_unpacked(matrices, join);
    std::vector<std::vector<linalg::WeightSource>> sources(matrices.size());
    for (std::size_t i = 0; i < matrices.size(); ++i)
        for (const StoredMatrix& matrix : matrices[i]) sources[i].push_back(matrix.whole());
    return pack(sources, join);
}

// Codes and scales of one stack lie beside what is packed until it is; never those of two.
Expected<Weight> WeightReader::pack_unpacked(const std::vector<std::vector<StoredMatrix>>& matrices,
                                             Join join) {
    std::vector<std::vector<linalg::UnpackedBlocks>> unpacked(matrices.size());
    std::vector<std::vector<linalg::ShiftedWeights>> shifted(matrices.size());
    std::vector<std::vector<linalg::WeightSource>> sources(matrices.size());
    for (std::size_t i = 0; i < matrices.size(); ++i)
        for (const StoredMatrix& matrix : matrices[i]) {
            if (matrix.stored.zeros) {
                shifted[i].push_back(matrix.without_shift(pool()));
                sources[i].push_back(matrix.part_of(shifted[i].back()));
                continue;
            }
            const BlockFacts& facts = facts_of(matrix.stored.block);
            const std::int64_t columns = matrix.stored_columns();
            const std::byte* first = matrix.stored.weights.bytes.data() +
                                     matrix.first_row * (columns / facts.weights) * facts.bytes;
            unpacked[i].push_back(linalg::UnpackedBlocks::unpack(pool(), matrix.stored.block, first,
                                                                 matrix.n, columns,
                                                                 {matrix.first_col, matrix.k}));
            sources[i].push_back(unpacked[i].back().source());
        }
    return pack(sources, join);
}

Expected<Weight> WeightReader::pack_rounded(const std::vector<std::vector<StoredMatrix>>& matrices,
                                            Join join, const Rounding& rounding) {
    const WeightCode code = matrices.front().front().stored.format.code;
    if (code != WeightCode::bf16 && code != WeightCode::e4m3)
        return fail_field(ErrorKind::unsupported, rounding.option,
                          "{}, but the checkpoint's are {}: BF16 and F8_E4M3 ones are rounded",
                          name_of(rounding.code), name_of(code));
    std::vector<std::vector<linalg::RoundedWeight>> rounded(matrices.size());
    std::vector<std::vector<linalg::WeightSource>> sources(matrices.size());
    for (std::size_t i = 0; i < matrices.size(); ++i)
        for (const StoredMatrix& matrix : matrices[i]) {
            ESPALIER_ASSIGN_OR_RETURN(
                linalg::RoundedWeight weight,
                linalg::RoundedWeight::round(pool(), matrix.whole(), rounding.code));
            rounded[i].push_back(std::move(weight));
        }
    for (std::size_t i = 0; i < matrices.size(); ++i)
        for (const linalg::RoundedWeight& weight : rounded[i])
            sources[i].push_back(weight.source());
    return pack(sources, join);
}

// Packing says what is wrong but not with which matrix of many: the first that cannot be packed
// alone.
tl::unexpected<Error> WeightReader::named(const Error& error,
                                          const std::vector<std::vector<StoredMatrix>>& matrices,
                                          const std::optional<Rounding>& rounding) {
    const auto fails = [&](const StoredMatrix& matrix) {
        const std::vector<std::vector<StoredMatrix>> alone{{matrix}};
        return !(rounding ? pack_rounded(alone, Join::rows, *rounding)
                          : pack_stored(alone, Join::rows));
    };
    for (const auto& group : matrices)
        for (const StoredMatrix& matrix : group)
            if (fails(matrix))
                return fail(error.kind, "{}: {}", matrix.stored.weights.name, error.message);
    return fail(error.kind, "{}: {}", matrices.front().front().stored.weights.name, error.message);
}

namespace {

using Parts = std::vector<std::vector<WeightReader::Part>>;

linalg::StackPart part_of(const Parts& parts, std::int64_t k,
                          const WeightReader::Selection& selection) {
    linalg::StackPart part{
        .matrices = {}, .rows = {}, .inputs = selection.inputs.value_or(linalg::Part{0, k})};
    if (selection.matrices) {
        part.matrices = *selection.matrices;
    } else {
        part.matrices.resize(parts.size());
        std::iota(part.matrices.begin(), part.matrices.end(), std::int64_t{0});
    }
    std::int64_t first = 0;
    for (const WeightReader::Part& joined : parts.front()) {
        linalg::Part rows = selection.rows.value_or(linalg::Part{0, joined.n});
        rows.first += first;
        part.rows.push_back(rows);
        first += joined.n;
    }
    return part;
}

bool is_all(const WeightReader::Selection& selection) {
    return !selection.matrices && !selection.rows && !selection.inputs;
}

}  // namespace

// Known to the shelf by its first part's name, with whose format all others agree. What is rounded
// lies in no file.
Expected<Weight> WeightReader::read_stack(const Parts& parts, std::int64_t k, Join join,
                                          const Selection& selection,
                                          const std::optional<Rounding>& rounding) {
    const Part& first = parts.front().front();
    ESPALIER_ASSIGN_OR_RETURN(const StoredMatrix known, stored(first.name, first.n, k));
    linalg::WeightView shape{
        .format = linalg::packed_format(known.stored.format), .count = std::ssize(parts), .k = k};
    for (const Part& part : parts.front()) shape.n += part.n;
    const auto make = [&]() -> Expected<Weight> {
        ESPALIER_ASSIGN_OR_RETURN(const auto matrices, stored_stack(parts, k, selection));
        auto packed =
            rounding ? pack_rounded(matrices, join, *rounding) : pack_stored(matrices, join);
        if (!packed && packed.error().field.empty())
            return named(packed.error(), matrices, rounding);
        for (const auto& group : matrices)
            for (const StoredMatrix& matrix : group) release(matrix);
        return packed;
    };
    const linalg::StackPart part = part_of(parts, k, selection);
    const linalg::WeightView here = part.shape(shape);
    if (here.count == 0 || here.n == 0 || here.k == 0) return Weight(Buffer(), Buffer(), here);
    Expected<Weight> read = rounding            ? make()
                            : is_all(selection) ? shelved(first.name, shape, make)
                                                : shelved_part(first.name, shape, part, make);
    if (!read) return read;
    if (rounding) packed_bytes_ += read->bytes();
    read->read_inputs_as(ways_.activations);
    return read;
}

Expected<Weight> WeightReader::stack(const Parts& parts, std::int64_t k, Join join,
                                     const Selection& selection) {
    std::optional<Rounding> rounding;
    if (ways_.rounding) rounding = {*ways_.rounding, "weights"};
    return read_stack(parts, k, join, selection, rounding);
}

Expected<Weight> WeightReader::head(const std::string& name, std::int64_t n, std::int64_t k,
                                    const linalg::Part& rows) {
    std::optional<Rounding> rounding;
    if (ways_.head_rounding) rounding = {*ways_.head_rounding, "head"};
    Selection selection;
    if (rows.count != n) selection.rows = rows;
    return read_stack({std::vector<Part>{{name, n}}}, k, Join::rows, selection, rounding);
}

Expected<Weight> WeightReader::rows_of(const std::string& name, std::int64_t n, std::int64_t k,
                                       const linalg::Part& rows) {
    Selection selection;
    if (rows.count != n) selection.rows = rows;
    return stack({{{name, n}}}, k, Join::rows, selection);
}

Expected<Weight> WeightReader::segments_of(const std::string& name, std::int64_t n, std::int64_t k,
                                           const linalg::InputSegments& segments) {
    Selection selection;
    if (segments.count != segments.whole) selection.inputs = linalg::inputs_of(segments, k);
    ESPALIER_ASSIGN_OR_RETURN(Weight made, stack({{{name, n}}}, k, Join::rows, selection));
    made.cut(segments);
    return made;
}

Expected<Weight> WeightReader::matrix(const std::string& name, std::int64_t n, std::int64_t k) {
    return stack({{{name, n}}}, k);
}

Expected<DeviceVector> WeightReader::vector(const std::string& name, std::int64_t n) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Tensor tensor,
                              checkpoint_.find(name, {n}, kNumbers));
    const std::vector<float> values = widen(tensor);
    release(tensor);
    return DeviceVector::upload(device_, values);
}

Expected<Weight> WeightReader::widened(const std::string& name, std::int64_t n, std::int64_t k) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Tensor tensor,
                              checkpoint_.find(name, {n, k}, kNumbers));
    const linalg::WeightView shape{.format = {.code = WeightCode::f32}, .count = 1, .n = n, .k = k};
    return shelved(name, shape, [&]() -> Expected<Weight> {
        const std::vector<float> values = widen(tensor);
        linalg::WeightSource source;
        source.data = reinterpret_cast<const std::byte*>(values.data());
        source.format = shape.format;
        source.n = n;
        source.k = k;
        source.row_stride = k;
        ESPALIER_ASSIGN_OR_RETURN(Weight packed, pack({{source}}));
        release(tensor);
        return packed;
    });
}

Expected<Embedding> WeightReader::embedding(const std::string& name, std::int64_t vocabulary,
                                            std::int64_t hidden) {
    ESPALIER_ASSIGN_OR_RETURN(const checkpoint::Tensor tensor,
                              checkpoint_.find(name, {vocabulary, hidden}, kNumbers));
    Embedding embedding;
    ops::EmbeddingTable& table = embedding.table;
    table.vocabulary = vocabulary;
    table.hidden = hidden;
    table.data = tensor.bytes.data();
    if (tensor.block != BlockCode::none && device_.reads_host_memory()) {
        table.block = tensor.block;
        return embedding;
    }
    if (tensor.block != BlockCode::none) {  // a GPU has no kernel for blocks: the same numbers
        const std::vector<float> values = widen(tensor);
        ESPALIER_ASSIGN_OR_RETURN(embedding.copy, device_.allocate(values.size() * sizeof(float)));
        ESPALIER_RETURN_IF_ERROR(device_.upload(device_.stream(), embedding.copy.data(),
                                                values.data(), values.size() * sizeof(float)));
        table.data = embedding.copy.data();
        return embedding;
    }
    table.dtype = dtype_of(tensor.type);
    const bool aligned = reinterpret_cast<std::uintptr_t>(table.data) % bytes_of(table.dtype) == 0;
    if (aligned && device_.reads_host_memory()) return embedding;
    ESPALIER_ASSIGN_OR_RETURN(embedding.copy, device_.allocate(tensor.bytes.size()));
    ESPALIER_RETURN_IF_ERROR(device_.upload(device_.stream(), embedding.copy.data(),
                                            tensor.bytes.data(), tensor.bytes.size()));
    table.data = embedding.copy.data();
    return embedding;
}

}  // namespace espalier::model
