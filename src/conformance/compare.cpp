// SPDX-License-Identifier: Apache-2.0
#include "conformance/compare.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace espalier::conformance {

using namespace mla;

namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

bool same_bits(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

// ‖result - oracle‖ / ‖oracle‖ of one (token, head); 0 where both are 0.
double relative_l2(const float* result, const float* oracle, std::int64_t columns) {
    double error = 0.0;
    double norm = 0.0;
    for (std::int64_t c = 0; c < columns; ++c) {
        const double want = oracle[c];
        const double difference = static_cast<double>(result[c]) - want;
        error += difference * difference;
        norm += want * want;
    }
    return error == 0.0 ? 0.0 : std::sqrt(error / norm);
}

}  // namespace

Difference bit_difference(const Result& a, std::int64_t a_token, const Result& b,
                          std::int64_t b_token) {
    for (int head = 0; head < a.heads; ++head) {
        if (!a.lse.empty() && !b.lse.empty() &&
            !same_bits(a.lse_of(a_token, head), b.lse_of(b_token, head)))
            return fmt::format("head {}: lse {} and {}", head, a.lse_of(a_token, head),
                               b.lse_of(b_token, head));
        for (std::int64_t c = 0; c < a.columns; ++c) {
            const float x = a.row(a_token, head)[c];
            const float y = b.row(b_token, head)[c];
            if (!same_bits(x, y))
                return fmt::format("head {}, column {}: {} and {}", head, c, x, y);
        }
    }
    return std::nullopt;
}

Difference bit_difference(const Result& a, const Result& b) {
    if (a.out.size() != b.out.size())
        return fmt::format("{} and {} tokens", a.tokens(), b.tokens());
    for (std::int64_t token = 0; token < a.tokens(); ++token)
        if (const Difference difference = bit_difference(a, token, b, token))
            return fmt::format("token {}, {}", token, *difference);
    return std::nullopt;
}

Difference not_nothing(const Result& result, std::int64_t token) {
    for (int head = 0; head < result.heads; ++head) {
        if (!result.lse.empty() && result.lse_of(token, head) != kMinusInfinity)
            return fmt::format("token {}, head {} sees nothing: lse {}, wanted is -inf", token,
                               head, result.lse_of(token, head));
        for (std::int64_t c = 0; c < result.columns; ++c)
            if (!same_bits(result.row(token, head)[c], 0.0f))
                return fmt::format("token {}, head {} sees nothing: column {} is {}, wanted is 0",
                                   token, head, c, result.row(token, head)[c]);
    }
    return std::nullopt;
}

Limits accuracy_limits(KvFormat format, Spread spread, DType out_dtype, double largest_score) {
    Limits limits{3.5e-3, 1e-3 + 0x1p-18 * largest_score};
    if (format == KvFormat::fp8_tensor || format == KvFormat::fp8_token) limits.relative_l2 = 4e-3;
    if (format == KvFormat::f32 && out_dtype == DType::f32)
        limits.relative_l2 = spread == Spread::peaked ? 4e-5 : 1e-5;
    return limits;
}

Closeness closeness(const Result& result, const Result& oracle, const Limits& limits,
                    std::int64_t first_token) {
    Closeness close;
    const auto note = [&](double error, double limit, std::string_view what, std::int64_t token,
                          int head) {
        if (error <= limit) {
            close.worst = std::max(close.worst, error / limit);
            return;
        }
        close.worst = std::max(close.worst, std::isfinite(error) ? error / limit : 1e9);
        if (!close.beyond)
            close.beyond = fmt::format("token {}, head {}: {} {:.3g}, the limit is {:.3g}", token,
                                       head, what, error, limit);
    };
    for (std::int64_t token = first_token; token < oracle.tokens(); ++token) {
        for (int head = 0; head < oracle.heads; ++head) {
            note(relative_l2(result.row(token, head), oracle.row(token, head), oracle.columns),
                 limits.relative_l2, "relative L2", token, head);
            if (result.lse.empty()) continue;
            const double want = oracle.lse_of(token, head);
            const double got = result.lse_of(token, head);
            if (want != got)  // equal: -inf included
                note(std::fabs(got - want), limits.lse, "error of lse", token, head);
        }
    }
    return close;
}

double signal_to_noise(const Result& result, const Result& oracle) {
    double noise = 0.0;
    double signal = 0.0;
    for (std::size_t i = 0; i < oracle.out.size(); ++i) {
        const double want = oracle.out[i];
        const double difference = static_cast<double>(result.out[i]) - want;
        noise += difference * difference;
        signal += want * want;
    }
    return 10.0 * std::log10(signal / noise);
}

}  // namespace espalier::conformance
