// SPDX-License-Identifier: Apache-2.0
// Append and compact: the bytes of the whole pool must be those that the oracle leaves.
#include <algorithm>
#include <limits>
#include <numeric>

#include "conformance/checks.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

// A small pool twice: on the host for the oracle, on the device for its kernels.
struct Pool {
    KvPages host;
    KvPages device;
    std::vector<std::byte> bytes;
    Buffer memory;

    std::int64_t slots() const { return host.page_count * host.page_tokens; }
};

std::optional<Pool> make_pool(Trial& trial) {
    Pool pool;
    pool.host.format = trial.format();
    pool.host.page_tokens = trial.random.one_of(kPageTokens);
    pool.host.dims = trial.dims();
    pool.host.page_stride = page_stride_bytes(trial.format(), pool.host.page_tokens, trial.dims());
    pool.host.page_count = 3;
    pool.host.scale = 0.5f;
    pool.bytes.resize(static_cast<std::size_t>(3 * pool.host.page_stride));
    for (std::byte& byte : pool.bytes) byte = static_cast<std::byte>(trial.random.bits());
    auto memory = trial.keep(trial.device().allocate(pool.bytes.size()), "placing");
    if (!memory ||
        !trial.done(trial.device().upload(memory->data(), pool.bytes.data(), pool.bytes.size()),
                    "upload"))
        return std::nullopt;
    pool.memory = std::move(*memory);
    pool.device = pool.host;
    pool.device.data = pool.memory.data();
    return pool;
}

void expect_same_pool(Trial& trial, Pool& pool, std::string_view what) {
    std::vector<std::byte> bytes(pool.bytes.size());
    if (!trial.done(trial.device().download(bytes.data(), pool.memory.data(), bytes.size()),
                    "download") ||
        !trial.done(trial.device().check_guards(pool.memory.data(), bytes.size()), what))
        return;
    const auto [mine, theirs] = std::mismatch(bytes.begin(), bytes.end(), pool.bytes.begin());
    if (mine == bytes.end()) {
        trial.expect(true, "{}", what);
        return;
    }
    trial.expect(false, "{}, pages of {}: byte {} of the pool is {:#x}, the oracle has {:#x}", what,
                 pool.host.page_tokens, mine - bytes.begin(), static_cast<int>(*mine),
                 static_cast<int>(*theirs));
}

// Numbers of every kind: usual, tiny, huge, beyond fp16, non-finite, tokens of nothing but zeros.
std::vector<float> hostile_values(Random& random, std::int64_t tokens, std::int64_t stride) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    std::vector<float> values(static_cast<std::size_t>(tokens * stride));
    for (std::int64_t token = 0; token < tokens; ++token) {
        const int kind = random.between(0, 7);
        for (std::int64_t c = 0; c < stride; ++c) {
            float& value = values[static_cast<std::size_t>(token * stride + c)];
            value = random.normal();
            if (kind == 1) value *= 1e-41f;  // subnormal
            if (kind == 2) value *= 1e30f;
            if (kind == 3) value *= 4e4f;
            if (kind == 4) value = 0.0f;
            if (kind == 5 && random.chance(0.02))
                value = random.one_of({kInfinity, -kInfinity,
                                       std::numeric_limits<float>::quiet_NaN(), 3.4e38f, 65520.0f});
            if (kind == 6) value = -0.0f;
        }
    }
    return values;
}

// Uploads to fresh device memory.
template <typename T>
std::optional<Buffer> on_device(Trial& trial, const std::vector<T>& values) {
    auto memory = trial.keep(trial.device().allocate(values.size() * sizeof(T)), "placing");
    if (!memory ||
        !trial.done(trial.device().upload(memory->data(), values.data(), values.size() * sizeof(T)),
                    "upload"))
        return std::nullopt;
    return memory;
}

}  // namespace

void check_append_arrays(Trial& trial) {
    Device& device = trial.device();
    const auto oracle = make_reference_kernels();
    for (int round = 0; round < 4; ++round) {
        auto pool = make_pool(trial);
        if (!pool) return;
        const std::int64_t tokens = trial.random.between(0, static_cast<int>(pool->slots()));
        std::vector<std::int64_t> slots(static_cast<std::size_t>(pool->slots()));
        std::iota(slots.begin(), slots.end(), 0);
        for (std::size_t i = slots.size(); i > 1; --i)
            std::swap(slots[i - 1], slots[trial.random.bits() % i]);
        slots.resize(static_cast<std::size_t>(tokens));
        for (std::int64_t& slot : slots)
            if (trial.random.chance(0.1)) slot = -trial.random.between(1, 9);
        // Latent and rope side by side in longer rows, as a projection leaves them.
        const std::int64_t stride = trial.dims().key() + 4 * trial.random.between(0, 8);
        const std::vector<float> values = hostile_values(trial.random, tokens, stride);
        // Flags of an earlier layer stay.
        std::vector<std::uint8_t> flags(slots.size());
        for (std::uint8_t& flag : flags) flag = trial.random.chance(0.3) ? 1 : 0;
        auto device_flags = on_device(trial, flags);
        AppendCall call;
        call.tokens = tokens;
        call.latent = values.data();
        call.rope = values.data() + trial.dims().latent;
        call.latent_stride = call.rope_stride = stride;
        call.slot = slots.data();
        call.kv = pool->host;
        call.kv.data = pool->bytes.data();
        call.nonfinite = flags.data();
        Arena no_arena{Buffer()};
        OpContext host{trial.oracle_device(), no_arena};
        if (!trial.done(oracle->append(host, call), "the oracle")) return;

        auto device_values = on_device(trial, values);
        auto device_slots = on_device(trial, slots);
        if (!device_values || !device_slots || !device_flags) return;
        const bool want_flags = round != 3;
        call.latent = device_values->as<float>();
        call.rope = call.latent + trial.dims().latent;
        call.slot = device_slots->as<std::int64_t>();
        call.kv = pool->device;
        call.nonfinite = want_flags ? device_flags->as<std::uint8_t>() : nullptr;
        if (!trial.done(device.run(trial.random.between(1, 3), 0,
                                   [&](OpContext& context) {
                                       return device.kernels().append(context, call);
                                   }),
                        "append"))
            return;
        expect_same_pool(trial, *pool, "append");
        std::vector<std::uint8_t> got(slots.size());
        if (!trial.done(device.download(got.data(), device_flags->data(), got.size()), "download"))
            return;
        trial.expect(!want_flags || got == flags,
                     "append of {} tokens: the flags of non-finite tokens differ", tokens);
    }
}

void check_compact_arrays(Trial& trial) {
    Device& device = trial.device();
    const auto oracle = make_reference_kernels();
    for (int round = 0; round < 4; ++round) {
        auto pool = make_pool(trial);
        if (!pool) return;
        // Accepted paths of several rows: each row has its own share of the slots, sources and
        // destinations ascend, the destination never lies behind the source.
        std::vector<std::int64_t> source;
        std::vector<std::int64_t> destination;
        std::int64_t begin = 0;
        while (begin < pool->slots()) {
            const std::int64_t end =
                std::min<std::int64_t>(pool->slots(), begin + trial.random.between(1, 40));
            const std::int64_t first = begin + trial.random.between(0, 3);
            std::int64_t to = first;
            for (std::int64_t from = first; from < end; ++from) {
                if (trial.random.chance(0.4)) continue;
                source.push_back(from);
                destination.push_back(to++);
            }
            begin = end;
        }
        CompactCall call;
        call.moves = static_cast<std::int64_t>(source.size());
        call.source = source.data();
        call.destination = destination.data();
        call.kv = pool->host;
        call.kv.data = pool->bytes.data();
        Arena no_arena{Buffer()};
        OpContext host{trial.oracle_device(), no_arena};
        if (!trial.done(oracle->compact(host, call), "the oracle")) return;
        auto device_source = on_device(trial, source);
        auto device_destination = on_device(trial, destination);
        if (!device_source || !device_destination) return;
        call.source = device_source->as<std::int64_t>();
        call.destination = device_destination->as<std::int64_t>();
        call.kv = pool->device;
        if (!trial.done(device.run(1, 0,
                                   [&](OpContext& context) {
                                       return device.kernels().compact(context, call);
                                   }),
                        "compact"))
            return;
        expect_same_pool(trial, *pool, "compact");
    }
}

}  // namespace espalier::conformance
