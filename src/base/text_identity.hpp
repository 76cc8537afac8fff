// SPDX-License-Identifier: Apache-2.0
// The one list of what a text is a function of, beside its request: equal identities give equal
// texts. A trace's header holds it, replay compares it, `inspect` and `serve --explain` print it.
// Plain data; runtime::text_identity makes it for a model on this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

// Versions of the order in which a backend's products add: the bits of all variants. CPU 2: o and
// down have a chain for each segment of their inputs (linalg/segments.hpp).
inline constexpr std::int32_t kCpuProductsVersion = 2;
inline constexpr std::int32_t kCudaProductsVersion = 1;

// An empty text is a value that is not known; it is not compared.
struct TextIdentity {
    std::string tokenizer;    // hash of its files, 16 hex digits
    std::string model;        // hash of configuration, tokenizer and tensors, likewise
    std::string weights;      // own: as the checkpoint has them; int8, int4: rounded at load
    std::string activations;  // own: as the weights' format says; int8 (base/number_mode.hpp)
    std::string head;         // own; int8: rounded at load
    std::string kv_format;    // f32, bf16, fp8_token, fp8_tensor
    std::int64_t prefill_segment = 0;
    std::string backend;  // cpu, cuda
    std::string family;   // of the device: cpu, hopper
    std::string variant;  // of the kernels: portable, avx2, avx512, avx512_bf16, sm_90a
    std::int32_t products_version = 0;
    std::int32_t sampling_version = 0;

    // Visitors are those of trace/events.hpp. A field that is not listed does not compile.
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        auto& [tokenizer, model, weights, activations, head, kv_format, prefill_segment, backend,
               family, variant, products_version, sampling_version] = self;
        visit.text("tokenizer", tokenizer);
        visit.text("model", model);
        visit.text("weights", weights);
        visit.text("activations", activations);
        visit.text("head", head);
        visit.text("kv_format", kv_format);
        visit.integer("prefill_segment", prefill_segment, 0, std::int64_t{1} << 20);
        visit.text("backend", backend);
        visit.text("family", family);
        visit.text("variant", variant);
        visit.integer("products_version", products_version, 0, (std::int64_t{1} << 31) - 1);
        visit.integer("sampling_version", sampling_version, 0, (std::int64_t{1} << 31) - 1);
    }
    bool operator==(const TextIdentity&) const = default;
};

struct IdentityField {
    std::string_view name;
    std::string value;
};
std::vector<IdentityField> listed(const TextIdentity& identity);

// The first field whose values are known and differ.
struct IdentityDifference {
    std::string_view field;
    std::string recorded, here;
};
std::optional<IdentityDifference> difference(const TextIdentity& recorded,
                                             const TextIdentity& here);

}  // namespace espalier
