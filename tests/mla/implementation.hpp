// SPDX-License-Identifier: Apache-2.0
// The implementations under test: the oracle and every CPU variant of this machine, with each cache
// format and width of keys they say they take.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "conformance/suite.hpp"

namespace espalier::conformance {

struct Implementation {
    std::optional<CpuVariant> variant;  // none: the oracle
    mla::KvFormat format = mla::KvFormat::bf16;
    KeyDims dims = {};

    // Exact memory, so that AddressSanitizer sees the first byte outside an array.
    std::unique_ptr<Device> make() const {
        return variant ? make_cpu_device(*variant, Allocation::exact)
                       : make_oracle_device(Allocation::exact);
    }
    std::string name() const {
        return std::string(variant ? name_of(*variant) : "oracle") + "_" +
               std::string(name_of(format)) +
               (dims == KeyDims{} ? "" : "_" + std::to_string(dims.latent));
    }
};

inline std::vector<Implementation> formats_of(std::optional<CpuVariant> variant) {
    std::vector<Implementation> result;
    const auto device = Implementation{variant}.make();
    for (const KeyDims& dims : kKeyDims)
        for (const mla::KvFormat format : kFormats)
            if (takes(*device, format, dims)) result.push_back({variant, format, dims});
    return result;
}

inline std::vector<CpuVariant> cpu_variants() {
    std::vector<CpuVariant> result;
    for (const CpuVariant variant :
         {CpuVariant::portable, CpuVariant::avx2, CpuVariant::avx512, CpuVariant::avx512_bf16})
        if (variant <= best_cpu_variant()) result.push_back(variant);
    return result;
}

// Found once: every test is a process of its own.
inline const std::vector<Implementation>& cpu_implementations() {
    static const std::vector<Implementation> result = [] {
        std::vector<Implementation> found;
        for (const CpuVariant variant : cpu_variants())
            for (const Implementation& implementation : formats_of(variant)) {
                // bf16 dot products cannot serve these caches: the kernels are avx512's.
                const bool same = variant == CpuVariant::avx512_bf16 &&
                                  (implementation.format == mla::KvFormat::f32 ||
                                   implementation.format == mla::KvFormat::fp16);
                if (!same) found.push_back(implementation);
            }
        return found;
    }();
    return result;
}

inline const std::vector<Implementation>& all_implementations() {
    static const std::vector<Implementation> result = [] {
        std::vector<Implementation> found = cpu_implementations();
        for (const Implementation& implementation : formats_of(std::nullopt))
            found.push_back(implementation);
        return found;
    }();
    return result;
}

// Those of 512 + 64 columns, for what does not depend on widths or brings others.
inline std::vector<Implementation> usual_widths(std::vector<Implementation> of) {
    std::erase_if(of, [](const Implementation& one) { return one.dims != KeyDims{}; });
    return of;
}

inline std::string implementation_name(const testing::TestParamInfo<Implementation>& info) {
    return info.param.name();
}

}  // namespace espalier::conformance
