// SPDX-License-Identifier: Apache-2.0
// A decode problem as other engines have it (uniform q_len, 3-D pages, flattened mask), in host
// memory, for the C API on any device.
#pragma once

#include <vector>

#include "espalier/mla.h"
#include "mla/implementation.hpp"

namespace espalier::mla {

struct CompatProblem {
    int batch, q_len, heads, page_size;
    KvFormat format;
    std::vector<std::int32_t> seq_lens;
    std::vector<std::int32_t> block_tables;
    std::int32_t max_pages = 0;
    std::int32_t max_seq_len = 0;
    KvPages kv;
    std::vector<std::byte> pages;
    std::vector<std::byte> query;
    std::vector<std::uint8_t> mask;
    std::vector<std::int64_t> mask_offset;

    CompatProblem(Random& random, KvFormat format_, int q_len_, int heads_, int page_size_,
                  std::vector<std::int32_t> lengths)
        : batch(static_cast<int>(lengths.size())),
          q_len(q_len_),
          heads(heads_),
          page_size(page_size_),
          format(format_),
          seq_lens(std::move(lengths)) {
        std::int32_t next = 1;  // page 0 is poison
        for (const std::int32_t length : seq_lens) {
            max_seq_len = std::max(max_seq_len, length);
            max_pages = std::max(max_pages, (length + page_size - 1) / page_size);
        }
        for (const std::int32_t length : seq_lens)
            for (int entry = 0; entry < max_pages; ++entry)
                block_tables.push_back(entry * page_size < length ? next++ : -7);
        kv.format = format;
        kv.page_tokens = page_size;
        kv.page_stride = page_stride_bytes(format, page_size);
        kv.page_count = next;
        kv.scale = 0.02f;
        pages.assign(static_cast<std::size_t>(next * kv.page_stride), std::byte{0xff});
        kv.data = pages.data();
        std::vector<float> key(kKey);
        for (int b = 0; b < batch; ++b)
            for (int c = 0; c < seq_lens[static_cast<std::size_t>(b)]; ++c) {
                for (float& x : key) x = random.normal();
                write_slot(kv, pool_slot(block_tables.data() + b * max_pages, page_size, c),
                           key.data(), key.data() + kLatent);
            }
        std::vector<float> values(static_cast<std::size_t>(batch * q_len * heads * kKey));
        for (float& x : values) x = random.normal();
        query = narrowed(values, query_dtype(format));
        for (const std::int32_t length : seq_lens) {
            mask_offset.push_back(static_cast<std::int64_t>(mask.size()));
            for (int i = 0; i < q_len * length; ++i) mask.push_back(random.chance(0.7) ? 200 : 0);
        }
    }

    std::int64_t tokens() const { return std::int64_t{batch} * q_len; }

    // The call over host memory; a device test swaps the addresses.
    espalier_mla_compat_call call(bool causal, bool with_mask) {
        espalier_mla_compat_call c{};
        c.size = sizeof c;
        c.q = query.data();
        c.kv_cache = pages.data();
        c.block_tables = block_tables.data();
        c.seq_lens = seq_lens.data();
        if (with_mask) {
            c.custom_mask = mask.data();
            c.cmask_off = mask_offset.data();
            c.custom_mask_len = static_cast<std::int64_t>(mask.size());
        }
        c.num_pages = kv.page_count;
        c.batch = batch;
        c.q_len = q_len;
        c.heads = heads;
        c.page_size = page_size;
        c.max_pages = max_pages;
        c.max_seq_len = max_seq_len;
        c.q_dtype = static_cast<std::int32_t>(query_dtype(format));
        c.kv_format = static_cast<std::int32_t>(format);
        c.out_dtype = ESPALIER_MLA_F32;
        c.causal = causal ? 1 : 0;
        c.invariant = 1;
        c.softmax_scale = 0.0721687836f;
        c.kv_scale = kv.scale;
        return c;
    }

    // The same through the native entry, with the mask combined by the plain rule.
    Expected<Result> native(const Kernels& kernels, bool causal, bool with_mask, int threads = 1) {
        std::vector<std::uint8_t> combined;
        std::vector<std::int64_t> offset;
        for (int b = 0; b < batch; ++b) {
            offset.push_back(static_cast<std::int64_t>(combined.size()));
            const std::int64_t length = seq_lens[static_cast<std::size_t>(b)];
            const std::int64_t from = mask_offset[static_cast<std::size_t>(b)];
            for (std::int64_t i = 0; i < q_len; ++i)
                for (std::int64_t c = 0; c < length; ++c) {
                    const std::int64_t at =
                        from < 0 || from > (std::int64_t{1} << 40) ? -1 : from + i * length + c;
                    const bool masked =
                        with_mask && (at < 0 || at >= static_cast<std::int64_t>(mask.size()) ||
                                      mask[static_cast<std::size_t>(at)] == 0);
                    const bool late = causal && c >= length - (q_len - 1) + i;
                    combined.push_back(masked || late ? 0 : 1);
                }
        }
        std::vector<std::int32_t> q_indptr;
        for (int b = 0; b <= batch; ++b) q_indptr.push_back(b * q_len);
        const std::vector<MaskKind> kinds(static_cast<std::size_t>(batch), MaskKind::dense);
        Result result{kLatent, heads, {}, {}};
        result.out.assign(static_cast<std::size_t>(tokens() * heads * kLatent), -5.0f);
        result.lse.assign(static_cast<std::size_t>(tokens() * heads), -5.0f);
        AbsorbedCall absorbed;
        absorbed.rows.rows = batch;
        absorbed.rows.token_end = tokens();
        absorbed.rows.q_indptr = q_indptr.data();
        absorbed.rows.kv_len = seq_lens.data();
        absorbed.rows.block_table = block_tables.data();
        absorbed.rows.block_stride = max_pages;
        absorbed.rows.mask = kinds.data();
        absorbed.rows.custom_mask = combined.data();
        absorbed.rows.custom_mask_offset = offset.data();
        absorbed.rows.custom_mask_len = static_cast<std::int64_t>(combined.size());
        absorbed.rows.max_q_len = q_len;
        absorbed.rows.max_kv_len = max_seq_len;
        absorbed.heads = heads;
        absorbed.q = query.data();
        absorbed.q_dtype = query_dtype(format);
        absorbed.kv = kv;
        absorbed.scale = 0.0721687836f;
        absorbed.out = reinterpret_cast<std::byte*>(result.out.data());
        absorbed.out_dtype = DType::f32;
        absorbed.lse = result.lse.data();
        ThreadPool pool(threads);
        Arena arena = exact_arena(kernels.scratch_bytes(capacities(absorbed.rows, heads, threads)));
        OpContext context{pool, arena};
        ESPALIER_RETURN_IF_ERROR(kernels.absorbed(context, absorbed));
        return result;
    }
};

}  // namespace espalier::mla
