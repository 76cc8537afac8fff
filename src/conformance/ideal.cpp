// SPDX-License-Identifier: Apache-2.0
#include "conformance/ideal.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.hpp"
#include "mla/storage.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

float rounded(float value, DType dtype) {
    std::byte stored[4];
    store_element(stored, dtype, 0, value);
    return load_element(stored, dtype, 0);
}

// One (token, head): scores and sums in double stand for f32 with a free order of summation.
void ideal_row(const std::vector<double>& scores, const std::vector<double>& keys,
               const KeyDims& dims, DType p_dtype, DType out_dtype, float* out) {
    const auto latent = static_cast<std::size_t>(dims.latent);
    const auto key = static_cast<std::size_t>(dims.key());
    const double maximum = *std::max_element(scores.begin(), scores.end());
    std::vector<double> sums(latent, 0.0);
    double total = 0.0;
    for (std::size_t c = 0; c < scores.size(); ++c) {
        const auto p = static_cast<float>(std::exp(scores[c] - maximum));
        total += p;
        const double weight = rounded(p, p_dtype);
        for (std::size_t d = 0; d < latent; ++d) sums[d] += weight * keys[c * key + d];
    }
    for (std::size_t d = 0; d < latent; ++d)
        out[d] = rounded(static_cast<float>(sums[d] / total), out_dtype);
}

}  // namespace

Result ideal_absorbed(ThreadPool& pool, const Batch& batch, const std::vector<Row>& rows,
                      DType out_dtype, float scale) {
    const int heads = batch.heads();
    const KeyDims dims = batch.kv().dims;
    const std::int64_t columns = dims.key();
    Result result{dims.latent, heads, {}, {}};
    result.out.resize(static_cast<std::size_t>(batch.tokens() * heads * dims.latent));
    const DType p_dtype = usual_query(batch.kv().format);
    for (std::size_t b = 0; b < rows.size(); ++b) {
        const Row& row = rows[b];
        std::vector<double> keys(static_cast<std::size_t>(row.keys * columns));
        for (int c = 0; c < row.keys; ++c)
            read_slot(batch.kv(), batch.slot(b, c), keys.data() + c * columns);
        pool.run(row.tokens * heads, [&](std::int64_t packed, int) {
            const std::int64_t at = batch.first_token(b) * heads + packed;
            std::vector<double> query(static_cast<std::size_t>(columns));
            for (std::int64_t d = 0; d < columns; ++d)
                query[static_cast<std::size_t>(d)] = static_cast<double>(load_element(
                    batch.image().query.data(), batch.query_dtype(), at * columns + d));
            std::vector<double> scores(static_cast<std::size_t>(row.keys),
                                       -std::numeric_limits<double>::infinity());
            for (int c = 0; c < row.keys; ++c) {
                if (!sees(row, static_cast<int>(packed / heads), c)) continue;
                double dot = 0.0;
                for (std::size_t d = 0; d < query.size(); ++d)
                    dot += query[d] * keys[static_cast<std::size_t>(c) * query.size() + d];
                scores[static_cast<std::size_t>(c)] = dot * static_cast<double>(scale);
            }
            ideal_row(scores, keys, dims, p_dtype, out_dtype, result.out.data() + at * dims.latent);
        });
    }
    return result;
}

}  // namespace espalier::conformance
