// SPDX-License-Identifier: Apache-2.0
// A decode problem as other engines have it (uniform q_len, 3-D pages, flattened mask), and the
// same problem as the native entry has it, with the mask combined by the plain rule.
#pragma once

#include "espalier/mla.h"
#include "mla/simple.hpp"

namespace espalier::mla::simple {

struct CompatProblem {
    int q_len;
    std::vector<Sequence> sequences;
    std::unique_ptr<Arrays> arrays;
    std::vector<std::uint8_t> mask;
    std::vector<std::int64_t> mask_offset;

    CompatProblem(Random& random, KvFormat format, int q_len_, int heads, int page_size,
                  const std::vector<int>& lengths)
        : q_len(q_len_) {
        std::vector<Row> rows;
        sequences.reserve(lengths.size());
        for (const int length : lengths) {
            sequences.emplace_back(random, std::max(length, q_len), heads, kKey);
            rows.push_back({&sequences.back(), 0, q_len, length});
        }
        arrays = std::make_unique<Arrays>(format, query_dtype(format), rows,
                                          Layout{.page_tokens = page_size, .padding_tokens = 0});
        for (const int length : lengths) {
            mask_offset.push_back(static_cast<std::int64_t>(mask.size()));
            for (int i = 0; i < q_len * length; ++i)
                mask.push_back(random() % 10 < 7 ? std::uint8_t{200} : std::uint8_t{0});
        }
    }

    std::int64_t tokens() const { return arrays->rows.token_end; }

    // Over host memory; a device test puts its own addresses in.
    espalier_mla_compat_call call(bool causal, bool with_mask) const {
        espalier_mla_compat_call c{};
        c.size = sizeof c;
        c.q = arrays->query.data();
        c.kv_cache = arrays->pages.data();
        c.block_tables = arrays->block_table.data();
        c.seq_lens = arrays->kv_len.data();
        if (with_mask) {
            c.custom_mask = mask.data();
            c.cmask_off = mask_offset.data();
            c.custom_mask_len = static_cast<std::int64_t>(mask.size());
        }
        c.num_pages = arrays->kv.page_count;
        c.batch = arrays->rows.rows;
        c.q_len = q_len;
        c.heads = arrays->heads;
        c.page_size = arrays->kv.page_tokens;
        c.max_pages = static_cast<std::int32_t>(arrays->rows.block_stride);
        c.max_seq_len = arrays->rows.max_kv_len;
        c.q_dtype = static_cast<std::int32_t>(arrays->q_dtype);
        c.kv_format = static_cast<std::int32_t>(arrays->kv.format);
        c.out_dtype = ESPALIER_MLA_F32;
        c.causal = causal ? 1 : 0;
        c.invariant = 1;
        c.softmax_scale = kScale;
        c.kv_scale = arrays->kv.scale;
        return c;
    }

    // The plain rule: causal AND mask as one dense mask of the native entry.
    Outputs native(const Kernels& kernels, bool causal, bool with_mask) const {
        std::vector<std::uint8_t> combined;
        std::vector<std::int64_t> offset;
        const auto mask_bytes = static_cast<__int128>(mask.size());
        for (std::size_t b = 0; b < mask_offset.size(); ++b) {
            offset.push_back(static_cast<std::int64_t>(combined.size()));
            const std::int64_t length = arrays->kv_len[b];
            for (std::int64_t i = 0; i < q_len; ++i)
                for (std::int64_t c = 0; c < length; ++c) {
                    const __int128 at = static_cast<__int128>(mask_offset[b]) + i * length + c;
                    const bool masked = with_mask && (at < 0 || at >= mask_bytes ||
                                                      mask[static_cast<std::size_t>(at)] == 0);
                    const bool late = causal && c >= length - (q_len - 1) + i;
                    combined.push_back(masked || late ? 0 : 1);
                }
        }
        const std::vector<MaskKind> kinds(offset.size(), MaskKind::dense);
        AbsorbedCall absorbed = absorbed_call(*arrays);
        absorbed.rows.mask = kinds.data();
        absorbed.rows.custom_mask = combined.data();
        absorbed.rows.custom_mask_offset = offset.data();
        absorbed.rows.custom_mask_len = static_cast<std::int64_t>(combined.size());
        return absorbed_on_host(kernels, absorbed);
    }
};

// A native call's rows and pages as the C API has them.
inline espalier_mla_rows c_rows_of(const RaggedRows& rows) {
    espalier_mla_rows result{};
    result.size = sizeof result;
    result.rows = rows.rows;
    result.max_q_len = rows.max_q_len;
    result.max_kv_len = rows.max_kv_len;
    result.block_stride = static_cast<std::int32_t>(rows.block_stride);
    result.token_end = rows.token_end;
    result.q_indptr = rows.q_indptr;
    result.kv_len = rows.kv_len;
    result.block_table = rows.block_table;
    result.mask = reinterpret_cast<const std::uint8_t*>(rows.mask);
    return result;
}

inline espalier_mla_pages c_pages_of(const KvPages& kv) {
    espalier_mla_pages result{};
    result.size = sizeof result;
    result.data = kv.data;
    result.format = static_cast<std::int32_t>(kv.format);
    result.page_tokens = kv.page_tokens;
    result.page_count = kv.page_count;  // page_stride 0: they lie close
    result.scale = kv.scale;
    return result;
}

}  // namespace espalier::mla::simple
