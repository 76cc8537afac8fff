// SPDX-License-Identifier: Apache-2.0
#include "cli/eval_figures.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"

namespace espalier::cli {
namespace {

constexpr double kBitsPerNat = 1.4426950408889634;

// ln Σ eˡ.
double log_sum(std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double{logit} - largest);
    return largest + std::log(sum);
}

double mean(double sum, double count) { return count > 0 ? sum / count : 0.0; }

}  // namespace

void EvalFigures::add(std::span<const float> logits, std::int32_t token, std::size_t bytes) {
    CHECK(token >= 0 && token < std::ssize(logits), "token {} of {}", token, logits.size());
    bits_ += (log_sum(logits) - double{logits[static_cast<std::size_t>(token)]}) * kBitsPerNat;
    bytes_ += bytes;
    ++tokens_;
}

void EvalFigures::compare(std::span<const float> logits, std::span<const float> other) {
    CHECK(logits.size() == other.size(), "{} logits and {}", logits.size(), other.size());
    const double here = log_sum(logits), there = log_sum(other);
    double nats = 0;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        const double log_p = double{other[i]} - there, log_q = double{logits[i]} - here;
        nats += std::exp(log_p) * (log_p - log_q);
    }
    kl_bits_ += nats * kBitsPerNat;
    const auto best = [](std::span<const float> of) {
        return std::max_element(of.begin(), of.end()) - of.begin();
    };
    agreed_ += best(logits) == best(other) ? 1 : 0;
    ++compared_;
}

double EvalFigures::bits_per_byte() const { return mean(bits_, static_cast<double>(bytes_)); }
double EvalFigures::bits_per_token() const { return mean(bits_, static_cast<double>(tokens_)); }
double EvalFigures::mean_kl_bits() const { return mean(kl_bits_, static_cast<double>(compared_)); }
double EvalFigures::top_agreement() const {
    return mean(static_cast<double>(agreed_), static_cast<double>(compared_));
}

}  // namespace espalier::cli
