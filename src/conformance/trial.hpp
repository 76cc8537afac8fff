// SPDX-License-Identifier: Apache-2.0
// What a check works with: a device, a format, random choices, and a place to note each case. Calls
// that return an error where the contract allows none are failures too.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "conformance/compare.hpp"
#include "conformance/suite.hpp"

namespace espalier::conformance {

class Trial {
  public:
    Trial(Device& device, const Support& support, CpuDevice& oracle_device, std::uint64_t seed,
          Outcome& outcome)
        : random(seed),
          device_(device),
          support_(support),
          oracle_device_(oracle_device),
          outcome_(outcome) {}

    Random random;

    Device& device() { return device_; }
    mla::KvFormat format() const { return support_.format; }
    const KeyDims& dims() const { return support_.dims; }
    const Support& support() const { return support_; }
    CpuDevice& oracle_device() { return oracle_device_; }

    // Any page size, shuffle, first slot and query dtype that the device takes.
    Layout any_layout();
    // Any number of workers and multiprocessors, output dtype and flag of invariance.
    RunOptions any_options();
    int any_multiprocessors();         // 0: all
    std::int64_t any_partial_bytes();  // 0: the usual ones, all at once
    // Any count of heads; small ones more often, since they cost less.
    int any_heads();

    // Each notes one case. The context is only made into text when the case fails.
    template <typename... Args>
    void expect(bool holds, fmt::format_string<Args...> format, Args&&... args) {
        note(holds ? Difference() : Difference(""),
             fmt::format(format, std::forward<Args>(args)...));
    }
    template <typename... Args>
    void expect_none(const Difference& difference, fmt::format_string<Args...> format,
                     Args&&... args) {
        note(difference, fmt::format(format, std::forward<Args>(args)...));
    }
    void expect_close(const Result& result, const Result& oracle, const Limits& limits,
                      const std::string& context, std::int64_t first_token = 0);
    // The largest error over its limit so far.
    void measured(double share_of_limit);

    // Nothing (and a failure noted) if the device returns an error.
    std::optional<Result> run(const Batch& batch, const RunOptions& options);
    std::optional<Result> oracle(const Batch& batch, float scale = kUsualScale);
    template <typename T>
    std::optional<T> keep(Expected<T> result, std::string_view what) {
        if (result) return std::move(*result);
        failed(result.error(), what);
        return std::nullopt;
    }
    bool done(const Expected<void>& result, std::string_view what) {
        if (!result) failed(result.error(), what);
        return result.has_value();
    }

  private:
    void note(const Difference& difference, const std::string& context);
    void failed(const Error& error, std::string_view what);

    Device& device_;
    const Support& support_;
    CpuDevice& oracle_device_;
    Outcome& outcome_;
};

// A batch and how it was run, for messages.
std::string describe(const Batch& batch, const RunOptions& options);

}  // namespace espalier::conformance
