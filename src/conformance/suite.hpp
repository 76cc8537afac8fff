// SPDX-License-Identifier: Apache-2.0
// The conformance suite of docs/mla_contract.md: every guarantee and the accuracy as a named check
// that runs on any device with any cache format and width of keys it takes. A check is a function
// of (device, format, width, seed): the same seed repeats a failure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "conformance/device.hpp"

namespace espalier::conformance {

inline constexpr mla::KvFormat kFormats[] = {mla::KvFormat::bf16, mla::KvFormat::fp16,
                                             mla::KvFormat::f32, mla::KvFormat::fp8_tensor,
                                             mla::KvFormat::fp8_token};

// Dtypes and masks that a device says it takes of one cache format with keys of one width, found by
// asking its kernels.
struct Support {
    mla::KvFormat format = mla::KvFormat::bf16;
    KeyDims dims = {};
    std::vector<DType> queries;         // of the absorbed entry; empty: it does not take the format
    std::vector<DType> prompt_queries;  // of the decompressed entry
    bool storage = false;               // append and compact
    bool lists = false;                 // of keys, in the absorbed entry
    bool select = false;                // their choice
    std::vector<std::string> refusals;  // in the kernels' own words
};
Support ask(Device& device, mla::KvFormat format, const KeyDims& dims = {});
// True if ask() would find any query dtype; much quicker.
bool takes(Device& device, mla::KvFormat format, const KeyDims& dims = {});
// The query dtypes that the contract allows over a format.
std::vector<DType> legal_queries(mla::KvFormat format);

struct Outcome {
    std::int64_t cases = 0;
    std::int64_t failures = 0;
    double worst = 0;           // largest error over its limit, where the check measures one
    std::string first_failure;  // empty: none
    std::uint64_t failing_seed = 0;
    bool device_lost = false;  // nothing after this means anything

    void add(const Outcome& other);
};

class Trial;

enum class Entry { absorbed, decompressed, storage, lists, select };

struct Check {
    std::string_view name;   // "garbage", as on the command line
    std::string_view title;  // "2 Garbage does not leak"
    Entry entry;
    void (*run)(Trial&);
};
// In the order of the contract.
std::span<const Check> all_checks();
const Check* find_check(std::string_view name);  // null: no such check

// True if the device takes what the check needs.
bool applies(const Check& check, const Support& support);

// One slice: some cases of the check, all from this seed. `oracle_device` is where the oracle runs.
Outcome run_check(const Check& check, Device& device, const Support& support,
                  CpuDevice& oracle_device, std::uint64_t seed);

}  // namespace espalier::conformance
