// SPDX-License-Identifier: Apache-2.0
// The oracle: docs/mla_contract.md in double and plain loops, every mask and every format. It is
// slow, allocates as it likes, and decides what the kernels must give.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/element.hpp"
#include "linalg/weight_at.hpp"
#include "mla/checks.hpp"
#include "mla/storage.hpp"

namespace espalier::mla {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// True if token i of row b sees key c: first_slot and the contract's four lines, in signed 64-bit
// arithmetic.
bool visible(const RaggedRows& rows, std::int32_t b, std::int64_t i, std::int64_t c) {
    const std::int64_t n = rows.q_indptr[b + 1] - rows.q_indptr[b];
    const std::int64_t keys = rows.kv_len[b];
    const std::int64_t slot = c * rows.dcp_world + rows.dcp_rank;
    const std::int64_t slots = rows.dcp_world > 1 ? rows.global_kv_len[b] : keys;
    if (slot < rows.first_slot) return false;
    switch (rows.mask[b]) {
        case MaskKind::full:
            return true;
        case MaskKind::causal:
            return slot < slots - (n - 1) + i;
        case MaskKind::tree: {
            const std::int64_t tail = rows.tail_len == nullptr ? n : rows.tail_len[b];
            const std::int64_t bit = slot - (slots - tail);
            if (bit < 0) return true;
            return bit < tail && ((rows.words[rows.q_indptr[b] + i] >> bit) & 1) != 0;
        }
        case MaskKind::dense: {
            const std::int64_t offset = rows.custom_mask_offset[b];
            const std::int64_t inside = i * keys + c;
            return offset >= -inside && offset < rows.custom_mask_len - inside &&
                   rows.custom_mask[offset + inside] != 0;
        }
    }
    return false;
}

// Softmax over the visible keys and the sum of their values; lse of nothing is -inf and its output
// 0.
struct Attended {
    std::vector<double> out;
    double lse = kNothing;
};

Attended attend(const std::vector<double>& scores, const double* values, std::int64_t value_stride,
                std::int64_t columns) {
    Attended result{std::vector<double>(static_cast<std::size_t>(columns), 0.0)};
    double maximum = kNothing;
    for (const double score : scores) maximum = std::max(maximum, score);
    if (maximum == kNothing) return result;
    double sum = 0.0;
    for (std::size_t c = 0; c < scores.size(); ++c) {
        if (scores[c] == kNothing) continue;
        const double p = std::exp(scores[c] - maximum);
        sum += p;
        const double* value = values + static_cast<std::int64_t>(c) * value_stride;
        for (std::int64_t d = 0; d < columns; ++d)
            result.out[static_cast<std::size_t>(d)] += p * value[d];
    }
    for (double& value : result.out) value /= sum;
    result.lse = maximum + std::log(sum);
    return result;
}

// The row's keys [kv_len, latent + rope].
std::vector<double> read_keys(const RaggedRows& rows, std::int32_t b, const KvPages& kv) {
    const std::int64_t columns = kv.dims.key();
    std::vector<double> keys(static_cast<std::size_t>(rows.kv_len[b] * columns));
    const std::int32_t* pages = rows.block_table + table_of(rows, b) * rows.block_stride;
    for (std::int64_t c = 0; c < rows.kv_len[b]; ++c)
        read_slot(kv, pool_slot(pages, kv.page_tokens, c), keys.data() + c * columns);
    return keys;
}

// Destination of a call's outputs; both entries write the same way.
struct Output {
    std::byte* out;
    DType dtype;
    float* lse;
    std::int32_t heads;
    std::int64_t columns;

    void write(std::int64_t token, std::int64_t head, const Attended& attended) const {
        const std::int64_t packed = token * heads + head;
        for (std::int64_t d = 0; d < columns; ++d)
            store_element(out, dtype, packed * columns + d,
                          static_cast<float>(attended.out[static_cast<std::size_t>(d)]));
        if (lse != nullptr) lse[packed] = static_cast<float>(attended.lse);
    }
    void write_padding(const RaggedRows& rows) const {
        const Attended nothing{std::vector<double>(static_cast<std::size_t>(columns), 0.0)};
        for (std::int64_t token = rows.q_indptr[rows.rows]; token < rows.token_end; ++token)
            for (std::int64_t head = 0; head < heads; ++head) write(token, head, nothing);
    }
};

// Eight sums side by side, since one chain of additions would wait for itself.
double dot_product(const double* a, const double* b, std::int64_t count) {
    double sum[8] = {};
    std::int64_t d = 0;
    for (; d + 8 <= count; d += 8)
        for (std::int64_t j = 0; j < 8; ++j) sum[j] += a[d + j] * b[d + j];
    for (std::int64_t j = 0; d + j < count; ++j) sum[j] += a[d + j] * b[d + j];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

// Scores of one (token, head) against keys [kv_len, columns] that lie key_stride apart; hidden ones
// are -inf.
std::vector<double> score_keys(const RaggedRows& rows, std::int32_t b, std::int64_t i,
                               const double* q, const double* keys, std::int64_t columns,
                               double scale) {
    std::vector<double> scores(static_cast<std::size_t>(rows.kv_len[b]), kNothing);
    for (std::int64_t c = 0; c < rows.kv_len[b]; ++c) {
        if (!visible(rows, b, i, c)) continue;
        scores[static_cast<std::size_t>(c)] = scale * dot_product(q, keys + c * columns, columns);
    }
    return scores;
}

std::vector<double> read_query(const std::byte* q, DType dtype, double q_scale, std::int64_t packed,
                               std::int64_t columns) {
    std::vector<double> query(static_cast<std::size_t>(columns));
    for (std::int64_t d = 0; d < columns; ++d)
        query[static_cast<std::size_t>(d)] =
            double{load_element(q, dtype, packed * columns + d)} * q_scale;
    return query;
}

// Keys of token i's list, of the row's, in its order.
struct ListedKeys {
    std::vector<double> keys;
    std::int64_t count = -1;  // there is no list
};

ListedKeys listed_keys(const AbsorbedCall& call, std::int32_t b, std::int64_t i,
                       const std::vector<double>& keys) {
    const auto& [slots, counts, stride] = call.lists;
    const std::int64_t token = call.rows.q_indptr[b] + i, columns = call.kv.dims.key();
    ListedKeys listed;
    if (counts == nullptr || counts[token] < 0) return listed;
    listed.count = 0;
    for (std::int64_t k = 0; k < counts[token]; ++k) {
        const std::int64_t slot = slots[token * stride + k];
        if (slot < call.rows.first_slot || slot >= call.rows.kv_len[b]) continue;
        const auto key = keys.begin() + slot * columns;
        listed.keys.insert(listed.keys.end(), key, key + columns);
        ++listed.count;
    }
    return listed;
}

std::vector<double> score_all(std::int64_t count, const double* q, const double* keys,
                              std::int64_t columns, double scale) {
    std::vector<double> scores(static_cast<std::size_t>(count));
    for (std::int64_t c = 0; c < count; ++c)
        scores[static_cast<std::size_t>(c)] = scale * dot_product(q, keys + c * columns, columns);
    return scores;
}

// Index scores of token i for the keys it sees, by slot.
struct IndexScore {
    double score;
    std::int32_t slot;

    // Descending; NaN comes last.
    bool before(const IndexScore& other) const {
        return std::isnan(other.score) ? !std::isnan(score) : score > other.score;
    }
};

std::vector<IndexScore> index_scores(const SelectCall& call, std::int32_t b, std::int64_t i,
                                     const std::vector<double>& keys) {
    const std::int64_t width = call.keys.dims.latent, token = call.rows.q_indptr[b] + i;
    std::vector<IndexScore> scores;
    const std::vector<double> q = read_query(call.q, call.q_dtype, 1.0, token, call.heads * width);
    for (std::int32_t c = 0; c < call.rows.kv_len[b]; ++c) {
        if (!visible(call.rows, b, i, c)) continue;
        double score = 0.0;
        for (std::int64_t head = 0; head < call.heads; ++head) {
            const double weight = static_cast<double>(call.weights[token * call.heads + head]) *
                                  static_cast<double>(call.weight_scale);
            const double dot = static_cast<double>(call.scale) *
                               dot_product(q.data() + head * width, keys.data() + c * width, width);
            score += weight * (dot < 0.0 ? 0.0 : dot);
        }
        scores.push_back({score, c});
    }
    return scores;
}

// One head's keys [count, latent + rope] through its up-projection: [count, stride], the weight's
// outputs first.
std::vector<double> up_project(const DecompressedCall& call, const linalg::WeightView& weight,
                               std::int64_t head, const std::vector<double>& latents,
                               std::int64_t stride) {
    const std::int64_t latent = call.kv.dims.latent, key = call.kv.dims.key();
    const auto count = static_cast<std::int64_t>(latents.size()) / key;
    const bool keep = call.kv.format == KvFormat::f32;
    const auto rounded = [keep](double value) {
        return keep ? value : static_cast<double>(to_float(to_bf16(static_cast<float>(value))));
    };
    std::vector<double> row(static_cast<std::size_t>(latent));
    std::vector<double> result(static_cast<std::size_t>(count * stride));
    for (std::int64_t output = 0; output < weight.n; ++output) {
        for (std::int64_t d = 0; d < latent; ++d)
            row[static_cast<std::size_t>(d)] = linalg::weight_at(weight, head, output, d);
        for (std::int64_t c = 0; c < count; ++c)
            result[static_cast<std::size_t>(c * stride + output)] =
                rounded(dot_product(latents.data() + c * key, row.data(), latent));
    }
    return result;
}

// Keys [kv_len, nope + rope] and values [kv_len, value] of one head.
struct HeadKeys {
    std::vector<double> keys;
    std::vector<double> values;
};

HeadKeys head_keys(const DecompressedCall& call, std::int64_t head,
                   const std::vector<double>& latents) {
    const HeadDims dims = call.head_dims();
    const auto [latent, rope] = call.kv.dims;
    const std::int64_t query = dims.nope + rope;
    HeadKeys result{up_project(call, call.up_key, head, latents, query),
                    up_project(call, call.up_value, head, latents, dims.value)};
    const auto count = static_cast<std::int64_t>(latents.size()) / (latent + rope);
    for (std::int64_t c = 0; c < count; ++c)
        std::copy_n(latents.begin() + c * (latent + rope) + latent, rope,
                    result.keys.begin() + c * query + dims.nope);
    return result;
}

void choose_keys(const SelectCall& call, std::int32_t b, std::int64_t i,
                 const std::vector<double>& keys) {
    std::vector<IndexScore> scores = index_scores(call, b, i, keys);
    if (std::ssize(scores) <= call.top_k) return;
    const std::int64_t token = call.rows.q_indptr[b] + i;
    const bool nan = std::any_of(scores.begin(), scores.end(),
                                 [](const IndexScore& one) { return std::isnan(one.score); });
    const auto end = scores.begin() + call.top_k;
    std::stable_sort(scores.begin(), scores.end(),
                     [](const IndexScore& a, const IndexScore& c) { return a.before(c); });
    std::sort(scores.begin(), end,
              [](const IndexScore& a, const IndexScore& c) { return a.slot < c.slot; });
    std::transform(scores.begin(), end, call.lists.slots + token * call.lists.stride,
                   [](const IndexScore& chosen) { return chosen.slot; });
    call.lists.count[token] = static_cast<std::int32_t>(call.top_k);
    if (nan && call.nonfinite != nullptr) call.nonfinite[token] = 1;
}

class ReferenceKernels final : public Kernels {
  public:
    Expected<void> absorbed(OpContext&, const AbsorbedCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_absorbed_arrays(call));
        const std::int64_t latent = call.kv.dims.latent, key = call.kv.dims.key();
        const Output output{call.out, call.out_dtype, call.lse, call.heads, latent};
        output.write_padding(call.rows);
        const double q_scale =
            call.q_dtype == DType::e4m3 ? static_cast<double>(call.q_scale) : 1.0;
        for (std::int32_t b = 0; b < call.rows.rows; ++b) {
            const std::int64_t first = call.rows.q_indptr[b];
            const std::int64_t q_len = call.rows.q_indptr[b + 1] - first;
            if (q_len == 0) continue;
            const std::vector<double> keys = read_keys(call.rows, b, call.kv);
            for (std::int64_t packed = 0; packed < q_len * call.heads; ++packed) {
                const std::int64_t i = packed / call.heads;
                const auto query =
                    read_query(call.q, call.q_dtype, q_scale, first * call.heads + packed, key);
                const auto [listed, count] = listed_keys(call, b, i, keys);
                const auto scores = count < 0
                                        ? score_keys(call.rows, b, i, query.data(), keys.data(),
                                                     key, static_cast<double>(call.scale))
                                        : score_all(count, query.data(), listed.data(), key,
                                                    static_cast<double>(call.scale));
                output.write(first + i, packed % call.heads,
                             attend(scores, count < 0 ? keys.data() : listed.data(), key, latent));
            }
        }
        return {};
    }

    Expected<void> decompressed(OpContext&, const DecompressedCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_decompressed_arrays(call));
        const auto [nope, value] = call.head_dims();
        const std::int64_t columns = nope + call.kv.dims.rope;
        const Output output{call.out, call.out_dtype, call.lse, call.heads, value};
        output.write_padding(call.rows);
        for (std::int32_t b = 0; b < call.rows.rows; ++b) {
            const std::int64_t first = call.rows.q_indptr[b];
            const std::int64_t q_len = call.rows.q_indptr[b + 1] - first;
            if (q_len == 0) continue;
            const std::vector<double> latents = read_keys(call.rows, b, call.kv);
            for (std::int64_t head = 0; head < call.heads; ++head) {
                const HeadKeys up = head_keys(call, head, latents);
                for (std::int64_t i = 0; i < q_len; ++i) {
                    const auto query = read_query(call.q, call.q_dtype, 1.0,
                                                  (first + i) * call.heads + head, columns);
                    const auto scores = score_keys(call.rows, b, i, query.data(), up.keys.data(),
                                                   columns, static_cast<double>(call.scale));
                    output.write(first + i, head, attend(scores, up.values.data(), value, value));
                }
            }
        }
        return {};
    }

    Expected<void> select(OpContext&, const SelectCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_select_arrays(call));
        const RaggedRows& rows = call.rows;
        std::fill(call.lists.count + rows.q_indptr[0], call.lists.count + rows.token_end, -1);
        for (std::int32_t b = 0; b < rows.rows; ++b) {
            if (rows.q_indptr[b + 1] == rows.q_indptr[b]) continue;
            const std::vector<double> keys = read_keys(rows, b, call.keys);
            for (std::int64_t i = 0; i < rows.q_indptr[b + 1] - rows.q_indptr[b]; ++i)
                choose_keys(call, b, i, keys);
        }
        return {};
    }
    Expected<void> check_indexer() const override { return {}; }

    Expected<void> append(OpContext&, const AppendCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_append_arrays(call));
        for (std::int64_t token = 0; token < call.tokens; ++token) {
            const bool flushed =
                call.slot[token] >= 0 &&
                write_slot(call.kv, call.slot[token], call.latent + token * call.latent_stride,
                           call.rope + token * call.rope_stride);
            if (flushed && call.nonfinite != nullptr) call.nonfinite[token] = 1;
        }
        return {};
    }

    Expected<void> compact(OpContext&, const CompactCall& call) const override {
        ESPALIER_RETURN_IF_ERROR(check_compact_arrays(call));
        for (std::int64_t i = 0; i < call.moves; ++i)
            move_slot(call.kv, call.source[i], call.destination[i]);
        return {};
    }

    std::size_t scratch_bytes(const Capacities&) const override { return 0; }
};

}  // namespace

std::unique_ptr<Kernels> make_reference_kernels() { return std::make_unique<ReferenceKernels>(); }

}  // namespace espalier::mla
