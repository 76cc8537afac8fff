// SPDX-License-Identifier: Apache-2.0
#include "cli/window_batch.hpp"

#include <numeric>
#include <random>
#include <utility>

namespace espalier::cli {
namespace {

batch::StepCapacity capacity_of(const WindowBatch::Shape& shape, std::int64_t pages,
                                std::int64_t splits) {
    const auto rows = static_cast<std::int32_t>(shape.sequences);
    return {.absorbed_tokens = shape.sequences * shape.window,
            .absorbed_rows = rows,
            .gather = shape.sequences,
            .max_q_len = static_cast<std::int32_t>(shape.window),
            .max_kv_len = static_cast<std::int32_t>(shape.depth + shape.window),
            .table_rows = rows,
            .block_stride = pages,
            .total_splits = splits};
}

template <typename T>
Expected<Buffer> on_device(Device& device, const std::vector<T>& values) {
    ESPALIER_ASSIGN_OR_RETURN(Buffer buffer, device.allocate(values.size() * sizeof(T)));
    ESPALIER_RETURN_IF_ERROR(
        device.upload(device.stream(), buffer.data(), values.data(), values.size() * sizeof(T)));
    return buffer;
}

}  // namespace

Expected<WindowBatch> WindowBatch::create(runtime::LoadedModel& loaded, const Shape& shape,
                                          std::vector<std::int32_t> tokens) {
    const model::ModelLimits& limits = loaded.model->limits();
    if (shape.depth + shape.window > limits.max_kv_len)
        return fail(ErrorKind::exhausted, "{} tokens behind {}, but the model's context is {}",
                    shape.window, shape.depth, limits.max_kv_len);
    const std::int64_t pages = cache::pages_for(shape.depth + shape.window);
    ESPALIER_ASSIGN_OR_RETURN(cache::KvStorage storage,
                              cache::KvStorage::create(*loaded.device, loaded.model->kv_layout(),
                                                       shape.sequences * pages + 1));
    WindowBatch batch(loaded, shape, std::move(storage));
    batch.tokens_ = std::move(tokens);
    ESPALIER_RETURN_IF_ERROR(batch.fill_cache());
    return batch;
}

WindowBatch::WindowBatch(runtime::LoadedModel& loaded, const Shape& shape, cache::KvStorage storage)
    : loaded_(loaded),
      shape_(shape),
      pages_(cache::pages_for(shape.depth + shape.window)),
      storage_(std::move(storage)),
      block_tables_(static_cast<std::size_t>(shape.sequences * pages_)),
      builder_(capacity_of(shape, pages_, loaded.model->limits().max_splits)),
      batch_(*loaded.device) {
    std::iota(block_tables_.begin(), block_tables_.end(), cache::kNullPage + 1);
}

// Positions [0, depth) of every layer and sequence: the time of attention does not depend on the
// values.
Expected<void> WindowBatch::fill_cache() {
    if (shape_.depth == 0) return {};
    Device& device = *loaded_.device;
    ESPALIER_ASSIGN_OR_RETURN(Buffer scratch, device.allocate(1 << 20));
    Arena arena(std::move(scratch));
    OpContext context{device, arena};
    std::mt19937 generator(2);
    std::normal_distribution<float> normal;
    const KeyDims keys = loaded_.model->config().key_dims();
    std::vector<float> noise(static_cast<std::size_t>(shape_.depth * keys.key()));
    for (float& value : noise) value = normal(generator);
    ESPALIER_ASSIGN_OR_RETURN(const Buffer latents, on_device(device, noise));
    std::vector<std::int64_t> slots(static_cast<std::size_t>(shape_.depth));
    for (std::int64_t sequence = 0; sequence < shape_.sequences; ++sequence) {
        // A sequence's pages follow one another.
        std::iota(slots.begin(), slots.end(),
                  (cache::kNullPage + 1 + sequence * pages_) * std::int64_t{cache::kPageTokens});
        ESPALIER_ASSIGN_OR_RETURN(const Buffer places, on_device(device, slots));
        const std::vector<cache::Plane>& planes = storage_.layout().planes;
        for (std::size_t plane = 0; plane < planes.size(); ++plane) {
            const KeyDims& columns = planes[plane].columns;
            CHECK(columns.key() <= keys.key(), "{} columns of {}", columns.key(),
                  planes[plane].name);
            mla::AppendCall call;
            call.tokens = shape_.depth;
            call.latent = latents.as<float>();
            call.latent_stride = keys.key();
            call.rope = latents.as<float>() + columns.latent;
            call.rope_stride = keys.key();
            call.slot = places.as<std::int64_t>();
            call.kv = storage_.pages(plane);
            ESPALIER_RETURN_IF_ERROR(loaded_.kernels->append(context, call));
        }
        ESPALIER_RETURN_IF_ERROR(device.synchronize(device.stream()));
    }
    return {};
}

Expected<batch::BatchView> WindowBatch::upload() {
    builder_.clear();
    const auto window = static_cast<std::size_t>(shape_.window);
    const auto pages = static_cast<std::size_t>(pages_);
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape_.sequences); ++i) {
        batch::RowSpec row;
        row.tokens = std::span(tokens_).subspan(i * window, window);
        row.block_table = std::span(block_tables_).subspan(i * pages, pages);
        row.table_row = static_cast<std::int32_t>(i);
        row.first_slot = static_cast<std::int32_t>(shape_.depth);
        row.gather = 1;
        ESPALIER_RETURN_IF_ERROR(builder_.add(row));
    }
    const batch::HostBatch host = builder_.finish();
    ESPALIER_RETURN_IF_ERROR(host.check_tokens(loaded_.model->config().vocab_size));
    return batch_.upload(loaded_.device->stream(), host);
}

Expected<void> WindowBatch::forward() {
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view, upload());
    ESPALIER_RETURN_IF_ERROR(loaded_.model->forward(view, storage_));
    return loaded_.device->synchronize(loaded_.device->stream());
}

Expected<std::unique_ptr<RecordedWork>> WindowBatch::record() {
    ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView view, upload());
    return loaded_.device->record(loaded_.device->stream(), [this, view]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(loaded_.model->forward(view, storage_));
        return {};
    });
}

}  // namespace espalier::cli
