// SPDX-License-Identifier: Apache-2.0
// include/espalier/mla.h on top of contract.hpp: contexts, statuses and workspace. The structs
// become calls in c_api_calls.cpp. No exception leaves this file.
#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>
#include <string>
#include <thread>

#include "base/cpu_device.hpp"
#include "espalier/mla.h"
#include "linalg/packed.hpp"
#include "mla/c_api_calls.hpp"

using namespace espalier;
using namespace espalier::mla;

struct espalier_mla_context {
    espalier_mla_context(std::unique_ptr<Device> where, std::unique_ptr<Kernels> what)
        : device(std::move(where)), kernels(std::move(what)) {}

    std::unique_ptr<Device> device;
    std::unique_ptr<Kernels> kernels;
    std::mutex one_at_a_time;  // the rule of the CPU's thread pool
};

namespace {

thread_local std::string last_error;

espalier_mla_status status_of(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::invalid:
            return ESPALIER_MLA_INVALID;
        case ErrorKind::unsupported:
            return ESPALIER_MLA_UNSUPPORTED;
        case ErrorKind::not_found:
            return ESPALIER_MLA_UNAVAILABLE;
        case ErrorKind::io:
            return ESPALIER_MLA_DEVICE;
        case ErrorKind::exhausted:
            return ESPALIER_MLA_EXHAUSTED;
    }
    return ESPALIER_MLA_INTERNAL;
}

espalier_mla_status refused(espalier_mla_status status, const char* sentence) noexcept {
    try {
        last_error = sentence;
    } catch (...) {  // no memory for the sentence; the status still stands
        last_error.clear();
    }
    return status;
}

// body: Expected<void>().
template <typename Body>
espalier_mla_status guarded(Body body) noexcept {
    try {
        const Expected<void> done = body();
        if (done) return ESPALIER_MLA_OK;
        return refused(status_of(done.error().kind), done.error().message.c_str());
    } catch (const std::bad_alloc&) {
        return refused(ESPALIER_MLA_EXHAUSTED, "out of host memory");
    } catch (const std::exception& error) {
        return refused(ESPALIER_MLA_INTERNAL, error.what());
    } catch (...) {
        return refused(ESPALIER_MLA_INTERNAL, "an unknown exception");
    }
}

Expected<void> check_context(const espalier_mla_context* context) {
    if (context == nullptr) return fail(ErrorKind::invalid, "context is NULL");
    return {};
}

// Bytes that an arena of whole 64-byte lines must hold.
std::size_t scratch_of(const espalier_mla_context& context, const Capacities& most) {
    return (context.kernels->scratch_bytes(most) + 63) / 64 * 64;
}

// The caller's memory as an arena, if it is enough.
Expected<Arena> workspace_of(void* workspace, std::uint64_t bytes, std::size_t needed) {
    if (bytes < needed || (workspace == nullptr && needed > 0))
        return fail(ErrorKind::exhausted, "a workspace of {} bytes{}, this call needs {}", bytes,
                    workspace == nullptr ? " at NULL" : "", needed);
    const auto behind =
        reinterpret_cast<std::uintptr_t>(workspace) % ESPALIER_MLA_WORKSPACE_ALIGNMENT;
    if (behind != 0)
        return fail(ErrorKind::invalid, "the workspace lies {} bytes behind a multiple of {}",
                    behind, ESPALIER_MLA_WORKSPACE_ALIGNMENT);
    return Arena(Buffer(workspace, bytes, nullptr));
}

// Runs operation(OpContext&) in the caller's workspace.
template <typename Operation>
Expected<void> run_in(espalier_mla_context& context, void* workspace, std::uint64_t bytes,
                      std::size_t needed, void* stream, Operation operation) {
    ESPALIER_ASSIGN_OR_RETURN(Arena arena, workspace_of(workspace, bytes, needed));
    OpContext op{*context.device, arena, stream};
    if (context.device->kind() == DeviceKind::cuda) return operation(op);
    const std::lock_guard lock(context.one_at_a_time);
    return operation(op);
}

// A size that follows from capacities. Where calls may be invariant, they may be otherwise too.
template <typename Size>
espalier_mla_status bytes_for(const espalier_mla_context* context,
                              const espalier_mla_capacities* most, uint64_t* bytes, Size size) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        if (bytes == nullptr) return fail(ErrorKind::invalid, "bytes is NULL");
        ESPALIER_ASSIGN_OR_RETURN(const Capacities capacities,
                                  c_api::capacities_of(most, context->device->workers()));
        Capacities flexible = capacities;
        flexible.invariant = false;
        *bytes = std::max(size(capacities), size(flexible));
        return {};
    });
}

}  // namespace

extern "C" {

int32_t espalier_mla_abi_version(void) { return ESPALIER_MLA_ABI_VERSION; }

const char* espalier_mla_status_name(espalier_mla_status status) {
    switch (status) {
        case ESPALIER_MLA_OK:
            return "ok";
        case ESPALIER_MLA_INVALID:
            return "invalid";
        case ESPALIER_MLA_UNSUPPORTED:
            return "unsupported";
        case ESPALIER_MLA_UNAVAILABLE:
            return "unavailable";
        case ESPALIER_MLA_DEVICE:
            return "device";
        case ESPALIER_MLA_EXHAUSTED:
            return "exhausted";
        case ESPALIER_MLA_INTERNAL:
            return "internal";
    }
    return "?";
}

const char* espalier_mla_last_error(void) { return last_error.c_str(); }

espalier_mla_status espalier_mla_create_cpu(int32_t threads, espalier_mla_context** context) {
    return guarded([&]() -> Expected<void> {
        if (context == nullptr) return fail(ErrorKind::invalid, "context is NULL");
        *context = nullptr;
        constexpr std::int32_t kMostThreads = 1024;
        if (threads < 0 || threads > kMostThreads)
            return fail(ErrorKind::invalid, "{} threads: 0 to {} are possible", threads,
                        kMostThreads);
        const int workers =
            threads > 0 ? threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
        ESPALIER_ASSIGN_OR_RETURN(const CpuVariant variant, chosen_cpu_variant());
        *context = new espalier_mla_context(std::make_unique<CpuDevice>(workers),
                                            make_cpu_kernels(variant));
        return {};
    });
}

espalier_mla_status espalier_mla_create_cuda(espalier_mla_context** context) {
    return guarded([&]() -> Expected<void> {
        if (context == nullptr) return fail(ErrorKind::invalid, "context is NULL");
        *context = nullptr;
        ESPALIER_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, make_cuda_device());
        ESPALIER_ASSIGN_OR_RETURN(std::unique_ptr<Kernels> kernels, make_cuda_kernels(*device));
        *context = new espalier_mla_context(std::move(device), std::move(kernels));
        return {};
    });
}

void espalier_mla_destroy(espalier_mla_context* context) { delete context; }

espalier_mla_status espalier_mla_page_stride(int32_t format, int32_t page_tokens, int64_t* bytes) {
    return guarded([&]() -> Expected<void> {
        if (bytes == nullptr) return fail(ErrorKind::invalid, "bytes is NULL");
        ESPALIER_ASSIGN_OR_RETURN(const KvFormat known, c_api::format_of(format));
        if (page_tokens != 16 && page_tokens != 32 && page_tokens != 64 && page_tokens != 128)
            return fail(ErrorKind::unsupported,
                        "pages of {} tokens: 16, 32, 64 or 128 are possible", page_tokens);
        *bytes = page_stride_bytes(known, page_tokens);
        return {};
    });
}

espalier_mla_status espalier_mla_workspace_bytes(const espalier_mla_context* context,
                                                 const espalier_mla_capacities* most,
                                                 uint64_t* bytes) {
    return bytes_for(context, most, bytes, [&](const Capacities& capacities) {
        return scratch_of(*context, capacities);
    });
}

espalier_mla_status espalier_mla_absorbed(espalier_mla_context* context,
                                          const espalier_mla_absorbed_call* given, void* workspace,
                                          uint64_t workspace_bytes, void* stream) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        ESPALIER_ASSIGN_OR_RETURN(const AbsorbedCall call, c_api::call_of(given));
        ESPALIER_ASSIGN_OR_RETURN(const Capacities most,
                                  c_api::capacities_of(call, context->device->workers()));
        return run_in(*context, workspace, workspace_bytes, scratch_of(*context, most), stream,
                      [&](OpContext& op) { return context->kernels->absorbed(op, call); });
    });
}

int64_t espalier_mla_row_splits(int32_t q_len, int32_t kv_len) {
    return q_len <= 0 || kv_len <= 0 ? 0 : row_splits(q_len, kv_len);
}

espalier_mla_status espalier_mla_plan_bytes(const espalier_mla_context* context,
                                            const espalier_mla_capacities* most, uint64_t* bytes) {
    return bytes_for(context, most, bytes, [&](const Capacities& capacities) {
        return context->kernels->plan_bytes(capacities);
    });
}

espalier_mla_status espalier_mla_plan(espalier_mla_context* context,
                                      const espalier_mla_absorbed_call* given, void* stream) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        ESPALIER_ASSIGN_OR_RETURN(const AbsorbedCall call, c_api::call_of(given));
        return run_in(*context, nullptr, 0, 0, stream,
                      [&](OpContext& op) { return context->kernels->plan(op, call); });
    });
}

espalier_mla_status espalier_mla_pack_up_weights(const void* up_rows, int32_t heads, void* packed) {
    return guarded([&]() -> Expected<void> {
        if (up_rows == nullptr || packed == nullptr)
            return fail(ErrorKind::invalid, "{} is NULL",
                        up_rows == nullptr ? "up_rows" : "packed");
        if (heads < 1 || heads > 128)
            return fail(ErrorKind::unsupported, "{} heads: 1 to 128 are possible", heads);
        // All heads' keys, then all heads' values, each in linalg's bf16 panels [k/2][16][2].
        for (std::int64_t half = 0; half < 2; ++half)
            for (std::int64_t row = 0; row < heads * kNope; ++row) {
                const std::int64_t head = row / kNope;
                const std::int64_t lane = row % linalg::kPanel;
                const std::byte* from = static_cast<const std::byte*>(up_rows) +
                                        ((head * 2 + half) * kNope + row % kNope) * kLatent * 2;
                std::byte* panel = static_cast<std::byte*>(packed) +
                                   (half * heads * kNope + row - lane) * kLatent * 2;
                for (std::int64_t pair = 0; pair < kLatent / 2; ++pair)
                    std::memcpy(panel + (pair * linalg::kPanel + lane) * 4, from + pair * 4, 4);
            }
        return {};
    });
}

espalier_mla_status espalier_mla_decompressed(espalier_mla_context* context,
                                              const espalier_mla_decompressed_call* given,
                                              void* workspace, uint64_t workspace_bytes,
                                              void* stream) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        ESPALIER_ASSIGN_OR_RETURN(const DecompressedCall call,
                                  c_api::call_of(given, context->device->kind()));
        ESPALIER_ASSIGN_OR_RETURN(const Capacities most,
                                  c_api::capacities_of(call, context->device->workers()));
        return run_in(*context, workspace, workspace_bytes, scratch_of(*context, most), stream,
                      [&](OpContext& op) { return context->kernels->decompressed(op, call); });
    });
}

espalier_mla_status espalier_mla_append(espalier_mla_context* context,
                                        const espalier_mla_append_call* given, void* stream) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        ESPALIER_ASSIGN_OR_RETURN(const AppendCall call, c_api::call_of(given));
        return run_in(*context, nullptr, 0, 0, stream,
                      [&](OpContext& op) { return context->kernels->append(op, call); });
    });
}

espalier_mla_status espalier_mla_compact(espalier_mla_context* context,
                                         const espalier_mla_compact_call* given, void* stream) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        ESPALIER_ASSIGN_OR_RETURN(const CompactCall call, c_api::call_of(given));
        return run_in(*context, nullptr, 0, 0, stream,
                      [&](OpContext& op) { return context->kernels->compact(op, call); });
    });
}

espalier_mla_status espalier_mla_decode_compat_workspace_bytes(
    const espalier_mla_context* context, const espalier_mla_compat_call* given, uint64_t* bytes) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        if (bytes == nullptr) return fail(ErrorKind::invalid, "bytes is NULL");
        ESPALIER_ASSIGN_OR_RETURN(const CompatCall call, c_api::call_of(given));
        *bytes = compat_scratch_bytes(*context->kernels, call, context->device->workers());
        return {};
    });
}

espalier_mla_status espalier_mla_decode_compat(espalier_mla_context* context,
                                               const espalier_mla_compat_call* given,
                                               void* workspace, uint64_t workspace_bytes,
                                               void* stream) {
    return guarded([&]() -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(check_context(context));
        ESPALIER_ASSIGN_OR_RETURN(const CompatCall call, c_api::call_of(given));
        const std::size_t needed =
            compat_scratch_bytes(*context->kernels, call, context->device->workers());
        return run_in(*context, workspace, workspace_bytes, needed, stream,
                      [&](OpContext& op) { return decode_compat(*context->kernels, op, call); });
    });
}

}  // extern "C"
