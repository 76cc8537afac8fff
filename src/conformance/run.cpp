// SPDX-License-Identifier: Apache-2.0
#include "conformance/run.hpp"

#include <mutex>
#include <optional>

namespace espalier::conformance {

using namespace mla;

template <typename T>
Expected<const T*> PlacedBatch::put(Buffer& buffer, const std::vector<T>& values) {
    const std::size_t bytes = values.size() * sizeof(T);
    if (buffer.data() == nullptr) {
        ESPALIER_ASSIGN_OR_RETURN(buffer, device_->allocate(bytes));
    }
    CHECK(buffer.bytes() == bytes, "an array of {} bytes refilled with {}", buffer.bytes(), bytes);
    ESPALIER_RETURN_IF_ERROR(device_->upload(buffer.data(), values.data(), bytes));
    return buffer.as<T>();
}

Expected<PlacedBatch> PlacedBatch::place(Device& device, const Batch& batch) {
    PlacedBatch placed(device, batch);
    ESPALIER_RETURN_IF_ERROR(placed.fill(batch));
    return placed;
}

Expected<void> PlacedBatch::refill(const Batch& batch) { return fill(batch); }

Expected<void> PlacedBatch::fill(const Batch& batch) {
    const BatchImage& image = batch.image();
    ESPALIER_ASSIGN_OR_RETURN(const auto* unused_pages, put(pages_, image.pages));
    ESPALIER_ASSIGN_OR_RETURN(const auto* unused_query, put(query_, image.query));
    static_cast<void>(unused_pages);
    static_cast<void>(unused_query);
    kv_.data = pages_.data();
    ESPALIER_ASSIGN_OR_RETURN(rows_.q_indptr, put(q_indptr_, image.q_indptr));
    ESPALIER_ASSIGN_OR_RETURN(rows_.kv_len, put(kv_len_, image.kv_len));
    ESPALIER_ASSIGN_OR_RETURN(rows_.block_table, put(block_table_, image.block_table));
    ESPALIER_ASSIGN_OR_RETURN(const std::int32_t* tables, put(table_row_, image.table_row));
    rows_.table_row = batch.layout().by_slot ? tables : nullptr;
    ESPALIER_ASSIGN_OR_RETURN(rows_.mask, put(mask_, image.mask));
    ESPALIER_ASSIGN_OR_RETURN(rows_.tail_len, put(tail_len_, image.tail_len));
    ESPALIER_ASSIGN_OR_RETURN(rows_.words, put(words_, image.words));
    ESPALIER_ASSIGN_OR_RETURN(rows_.custom_mask, put(custom_mask_, image.custom_mask));
    ESPALIER_ASSIGN_OR_RETURN(rows_.custom_mask_offset,
                              put(custom_mask_offset_, image.custom_mask_offset));
    ESPALIER_ASSIGN_OR_RETURN(const std::int32_t* global, put(global_kv_len_, image.global_kv_len));
    rows_.global_kv_len = batch.view().dcp_world > 1 ? global : nullptr;
    return {};
}

Expected<PlacedOutput> PlacedOutput::place(Device& device, std::int64_t tokens, int heads,
                                           std::int64_t columns, const RunOptions& options) {
    PlacedOutput output(device);
    output.columns_ = columns;
    output.heads_ = heads;
    output.dtype_ = options.out_dtype;
    const auto rows = static_cast<std::size_t>(tokens * heads);
    ESPALIER_ASSIGN_OR_RETURN(
        output.out_,
        device.allocate(rows * static_cast<std::size_t>(columns) * bytes_of(options.out_dtype)));
    if (options.want_lse) {
        ESPALIER_ASSIGN_OR_RETURN(output.lse_, device.allocate(rows * sizeof(float)));
    }
    return output;
}

Expected<void> PlacedOutput::clear() {
    const std::vector<std::byte> poison(out_.bytes(), std::byte{0xff});
    ESPALIER_RETURN_IF_ERROR(device_->upload(out_.data(), poison.data(), out_.bytes()));
    return device_->upload(lse_.data(), poison.data(), lse_.bytes());
}

Expected<Result> PlacedOutput::read() {
    ESPALIER_RETURN_IF_ERROR(device_->check_guards(out_.data(), out_.bytes()));
    ESPALIER_RETURN_IF_ERROR(device_->check_guards(lse_.data(), lse_.bytes()));
    Result result{columns_, heads_, {}, {}};
    std::vector<std::byte> bytes(out_.bytes());
    ESPALIER_RETURN_IF_ERROR(device_->download(bytes.data(), out_.data(), bytes.size()));
    result.out = widened(bytes, dtype_);
    result.lse.resize(lse_.bytes() / sizeof(float));
    ESPALIER_RETURN_IF_ERROR(device_->download(result.lse.data(), lse_.data(), lse_.bytes()));
    return result;
}

Capacities capacities_of(const Batch& batch, const RunOptions& options) {
    Capacities most = batch.capacities(options.workers, options.invariant);
    most.partial_bytes = options.partial_bytes;
    return most;
}

AbsorbedCall absorbed_call(const PlacedBatch& placed, const Batch& batch, PlacedOutput& output,
                           const RunOptions& options) {
    AbsorbedCall call;
    call.rows = placed.rows();
    call.heads = batch.heads();
    call.q = placed.query();
    call.q_dtype = batch.query_dtype();
    call.q_scale = batch.query_scale();
    call.kv = placed.kv();
    call.scale = options.scale;
    call.out = output.out();
    call.out_dtype = options.out_dtype;
    call.lse = options.want_lse ? output.lse() : nullptr;
    call.invariant = options.invariant;
    call.multiprocessors = options.multiprocessors;
    call.partial_bytes = options.partial_bytes;
    return call;
}

Expected<Result> run_absorbed(Device& device, const Batch& batch, const RunOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const PlacedBatch placed, PlacedBatch::place(device, batch));
    ESPALIER_ASSIGN_OR_RETURN(PlacedOutput output,
                              PlacedOutput::place(device, batch.tokens(), batch.heads(),
                                                  batch.kv().dims.latent, options));
    const AbsorbedCall call = absorbed_call(placed, batch, output, options);
    ESPALIER_RETURN_IF_ERROR(
        device.run(options.workers, device.kernels().scratch_bytes(capacities_of(batch, options)),
                   [&](OpContext& context) { return device.kernels().absorbed(context, call); }));
    return output.read();
}

// The oracle takes one row at a time: a view of that row, whose token_end is its own end, has no
// padding; the last view has all of it.
Expected<Result> oracle_absorbed(CpuDevice& host, const Batch& batch, float scale) {
    const auto oracle = make_reference_kernels();
    const std::int64_t columns = batch.kv().dims.latent;
    Result result{columns, batch.heads(), {}, {}};
    const auto packed = static_cast<std::size_t>(batch.tokens() * batch.heads());
    result.out.assign(packed * static_cast<std::size_t>(columns), 0.0f);
    result.lse.assign(packed, 0.0f);
    std::mutex guard;
    std::optional<Error> failure;
    const RaggedRows& all = batch.view();
    host.pool().run(all.rows + 1, [&](std::int64_t b, int) {
        AbsorbedCall call;
        call.rows = all;
        call.rows.rows = b < all.rows ? 1 : 0;
        call.rows.q_indptr += b;
        call.rows.token_end = b < all.rows ? all.q_indptr[b + 1] : all.token_end;
        call.rows.kv_len += b;
        if (all.table_row != nullptr)
            call.rows.table_row += b;
        else
            call.rows.block_table += b * all.block_stride;
        call.rows.mask += b;
        call.rows.tail_len += b;
        call.rows.custom_mask_offset += b;
        if (call.rows.global_kv_len != nullptr) call.rows.global_kv_len += b;
        call.heads = batch.heads();
        call.q = batch.image().query.data();
        call.q_dtype = batch.query_dtype();
        call.q_scale = batch.query_scale();
        call.kv = batch.kv();
        call.scale = scale;
        call.out = reinterpret_cast<std::byte*>(result.out.data());
        call.out_dtype = DType::f32;
        call.lse = result.lse.data();
        Arena arena{Buffer()};
        OpContext context{host, arena};
        if (const Expected<void> done = oracle->absorbed(context, call); !done) {
            const std::lock_guard lock(guard);
            failure = done.error();
        }
    });
    if (failure) return tl::unexpected<Error>(*failure);
    return result;
}

}  // namespace espalier::conformance
