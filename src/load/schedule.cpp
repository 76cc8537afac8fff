// SPDX-License-Identifier: Apache-2.0
#include "load/schedule.hpp"

#include <cmath>
#include <random>
#include <utility>

namespace espalier::load {

std::vector<double> arrival_times(const LoadOptions& options) {
    std::vector<double> times(static_cast<std::size_t>(options.requests), 0.0);
    if (!std::isfinite(options.rate)) return times;
    std::mt19937_64 bits(options.seed);
    std::gamma_distribution<double> interval(options.burstiness,
                                             1.0 / (options.rate * options.burstiness));
    double sum = 0;
    for (double& time : times) time = sum += interval(bits);
    const double scale = sum > 0 ? static_cast<double>(options.requests) / options.rate / sum : 0;
    for (double& time : times) time *= scale;
    return times;
}

Pacer::Pacer(std::vector<double> arrivals, std::int64_t concurrency)
    : arrivals_(std::move(arrivals)),
      concurrency_(concurrency > 0 ? concurrency : kMaxConcurrency) {}

Pacer::Step Pacer::next(double now) {
    if (sent_ == arrivals_.size()) {
        if (under_way_ > 0) return WaitForEnd{};
        return Finished{};
    }
    if (arrivals_[sent_] > now) return WaitUntil{arrivals_[sent_]};
    if (under_way_ >= concurrency_) return WaitForEnd{};
    ++under_way_;
    return Send{sent_++};
}

}  // namespace espalier::load
