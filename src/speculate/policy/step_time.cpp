// SPDX-License-Identifier: Apache-2.0
// The fit: hat functions over the knots, rows and keys; weak penalties on changes of slope and on
// keys that cost unlike tokens; weights that fall with the residual; then a projection onto curves
// that do not decrease.
#include "speculate/policy/step_time.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

#include "base/check.hpp"

namespace espalier::speculate {

namespace {

constexpr std::size_t kCount = StepTime::kKnots.size();
constexpr std::size_t kRow = kCount, kKey = kCount + 1;  // after the knots: costs of a row, a key
constexpr std::size_t kUnknowns = kCount + 2;
using Unknowns = std::array<double, kUnknowns>;
using Matrix = std::array<Unknowns, kUnknowns>;

constexpr double knot(std::size_t k) { return static_cast<double>(StepTime::kKnots[k]); }

// tokens = (1 - share) · knot(left) + share · knot(left + 1); share exceeds 1 beyond the last knot.
struct Segment {
    std::size_t left;
    double share;
};

Segment segment_of(std::int64_t tokens) {
    const auto& knots = StepTime::kKnots;
    const auto above = std::upper_bound(knots.begin() + 1, knots.end() - 1, tokens);
    const auto left = static_cast<std::size_t>(above - knots.begin()) - 1;
    const double width = knot(left + 1) - knot(left);
    return {left, (static_cast<double>(std::max<std::int64_t>(tokens, 1)) - knot(left)) / width};
}

bool usable(const StepSample& s) {
    const StepSize& size = s.size;
    return size.rows >= 1 && size.tokens >= size.rows && std::isfinite(size.keys) &&
           size.keys >= 0 && std::isfinite(s.seconds) && s.seconds > 0;
}

// Gaussian elimination for a symmetric positive definite system.
Unknowns solve(Matrix a, Unknowns b) {
    for (std::size_t i = 0; i < kUnknowns; ++i)
        for (std::size_t j = i + 1; j < kUnknowns; ++j) {
            const double factor = a[j][i] / a[i][i];
            if (factor == 0) continue;
            for (std::size_t k = i; k < kUnknowns; ++k) a[j][k] -= factor * a[i][k];
            b[j] -= factor * b[i];
        }
    for (std::size_t i = kUnknowns; i-- > 0;) {
        for (std::size_t k = i + 1; k < kUnknowns; ++k) b[i] -= a[i][k] * b[k];
        b[i] /= a[i][i];
    }
    return b;
}

void add_square(Matrix& a, const Unknowns& row, double weight) {
    for (std::size_t i = 0; i < kUnknowns; ++i)
        if (row[i] != 0)
            for (std::size_t j = 0; j < kUnknowns; ++j) a[i][j] += weight * row[i] * row[j];
}

// Penalties in units of a sample's squared relative error, times these: a relative bend of 3 % of
// the typical time costs as much as an error of 0.03 %, so data always wins and gaps are bridged.
constexpr double kBend = 1e-4;
// Far weaker still: a flat curve when the samples cannot tell.
constexpr double kFlat = 1e-8;

// Keys worth 64 tokens that are off by 10 % of the typical time cost as much as an error of 0.3 %.
constexpr double kKeyPrior = 1e-3, kKeyTokens = 64;
// Rows are for nothing when the samples cannot tell: eight rows worth 10 % of the typical time cost
// as much as an error of 0.3 %, more than a curve that bends. (Eight rows of a token beside long
// prompts are explained by both. Where rows took the blame, tokens looked free.)
constexpr double kRowPrior = 1e-3, kPriorRows = 8;

void add_penalties(Matrix& a, double typical_seconds) {
    for (std::size_t k = 1; k + 1 < kCount; ++k) {
        const double left = knot(k) / (knot(k) - knot(k - 1)) / typical_seconds;
        const double right = knot(k) / (knot(k + 1) - knot(k)) / typical_seconds;
        Unknowns bend = {};
        bend[k - 1] = left;
        bend[k] = -left - right;
        bend[k + 1] = right;
        add_square(a, bend, kBend);
    }
    for (std::size_t k = 0; k + 1 < kCount; ++k) {
        Unknowns step = {};
        step[k] = -1 / typical_seconds;
        step[k + 1] = 1 / typical_seconds;
        add_square(a, step, kFlat);
    }
    Unknowns row = {};
    row[kRow] = kPriorRows / typical_seconds;
    add_square(a, row, kRowPrior);
    // A key costs what its arithmetic costs in a long batch, by default.
    constexpr double kSpan = knot(kCount - 1) - knot(0);
    Unknowns key = {};
    key[kKey] = kKeyTokens / typical_seconds;
    key[0] = kKeyTokens / kSpan / typical_seconds;
    key[kCount - 1] = -kKeyTokens / kSpan / typical_seconds;
    add_square(a, key, kKeyPrior);
}

// Which of the two costs besides the curve the fit may use.
struct Terms {
    bool rows = true, keys = true;
};

// The sample's hat functions, rows and keys, divided by its seconds: the fit should say 1.
Unknowns equation(const StepSample& s, const Terms& terms) {
    Unknowns row = {};
    const Segment segment = segment_of(s.size.tokens);
    row[segment.left] = (1 - segment.share) / s.seconds;
    row[segment.left + 1] = segment.share / s.seconds;
    row[kRow] = terms.rows ? static_cast<double>(s.size.rows) / s.seconds : 0;
    row[kKey] = terms.keys ? s.size.keys / s.seconds : 0;
    return row;
}

double product(const Unknowns& row, const Unknowns& x) {
    double sum = 0;
    for (std::size_t i = 0; i < kUnknowns; ++i) sum += row[i] * x[i];
    return sum;
}

double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

struct Fit {
    Unknowns x;
    double scatter;
};

constexpr double kLeastScatter = 0.005;

// Five rounds of reweighting: a residual beyond twice the median loses weight with its square.
Fit fit_robust(std::span<const StepSample> samples, double typical_seconds, const Terms& terms) {
    std::vector<double> weight(samples.size(), 1), error(samples.size());
    Fit fit = {};
    for (int round = 0; round < 5; ++round) {
        Matrix a = {};
        Unknowns b = {};
        add_penalties(a, typical_seconds);
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const Unknowns row = equation(samples[i], terms);
            add_square(a, row, weight[i]);
            for (std::size_t k = 0; k < kUnknowns; ++k) b[k] += weight[i] * row[k];
        }
        fit.x = solve(a, b);
        for (std::size_t i = 0; i < samples.size(); ++i)
            error[i] = std::abs(product(equation(samples[i], terms), fit.x) - 1);
        fit.scatter = std::max(kLeastScatter, median(error));
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const double excess = std::max(1.0, error[i] / (2 * fit.scatter));
            weight[i] = 1 / (excess * excess);
        }
    }
    return fit;
}

// A cost below zero is an artefact of the samples' scatter: the fit then goes without that term.
Fit fit_not_negative(std::span<const StepSample> samples, double typical_seconds) {
    Terms terms;
    Fit fit = fit_robust(samples, typical_seconds, terms);
    if (fit.x[kKey] < 0) {
        terms.keys = false;
        fit = fit_robust(samples, typical_seconds, terms);
        fit.x[kKey] = 0;
    }
    if (fit.x[kRow] < 0) {
        terms.rows = false;
        fit = fit_robust(samples, typical_seconds, terms);
        fit.x[kRow] = 0;
        if (!terms.keys) fit.x[kKey] = 0;
    }
    return fit;
}

// From here on a step is a prompt's: bound by arithmetic, so no step computes a token in less.
// Tiles (a step of 16 tokens may be cheaper by the token than one of 68) leave that off by a fifth.
constexpr std::int64_t kPromptTokens = 64;
constexpr double kPromptSlack = 0.8;

constexpr double kNearKeys = 0.8;  // texts grow from sample to sample

// Pool adjacent violators: the nearest curve that does not decrease, in squares weighted by what
// was seen at each knot, so that a place that was measured is not bent towards one that was not.
template <typename Curve>
Curve not_decreasing(const Curve& raw, const Curve& samples) {
    constexpr double kUnseen = 0.05;  // samples that a guess is worth
    struct Block {
        double sum, weight;
        std::size_t length;
        double mean() const { return sum / weight; }
    };
    std::array<Block, kCount> blocks;
    std::size_t count = 0;
    for (std::size_t k = 0; k < kCount; ++k) {
        const double weight = kUnseen + samples[k];
        blocks[count++] = {weight * raw[k], weight, 1};
        while (count > 1 && blocks[count - 2].mean() > blocks[count - 1].mean()) {
            blocks[count - 2].sum += blocks[count - 1].sum;
            blocks[count - 2].weight += blocks[count - 1].weight;
            blocks[count - 2].length += blocks[count - 1].length;
            --count;
        }
    }
    Curve curve = {};
    std::size_t k = 0;
    for (std::size_t b = 0; b < count; ++b)
        for (std::size_t i = 0; i < blocks[b].length; ++i) curve[k++] = blocks[b].mean();
    return curve;
}

// True if a sample took far longer than one of more work, which proves that it was disturbed.
bool outdone(const StepSample& sample, std::span<const StepSample> samples) {
    constexpr double kFar = 1.6;  // times
    return std::ranges::any_of(samples, [&](const StepSample& other) {
        return other.size.rows >= sample.size.rows && other.size.tokens >= sample.size.tokens &&
               other.size.keys >= kNearKeys * sample.size.keys &&
               sample.seconds > kFar * other.seconds;
    });
}

}  // namespace

Expected<StepTime> StepTime::fit(std::span<const StepSample> samples) {
    if (samples.empty()) return fail(ErrorKind::invalid, "step time: no samples to fit");
    std::vector<double> seconds;
    for (const StepSample& s : samples) {
        if (!usable(s))
            return fail(ErrorKind::invalid,
                        "step time: a sample of {} rows, {} tokens, {} keys and {} seconds",
                        s.size.rows, s.size.tokens, s.size.keys, s.seconds);
        seconds.push_back(s.seconds);
    }
    std::vector<StepSample> kept;
    std::ranges::copy_if(samples, std::back_inserter(kept),
                         [&](const StepSample& s) { return !outdone(s, samples); });
    const double typical = median(seconds);
    const Fit fit = fit_not_negative(kept, typical);
    StepTime time;
    // A step below a thousandth of the typical time is an artefact of extrapolation.
    time.least_ = typical * 1e-3;
    for (std::size_t k = 0; k < kCount; ++k) time.raw_[k] = std::max(fit.x[k], time.least_);
    time.per_row_ = std::max(0.0, fit.x[kRow]);
    time.per_key_ = std::max(0.0, fit.x[kKey]);
    time.scatter_ = fit.scatter;
    for (const StepSample& s : kept) time.visit(s);
    time.curve_ = not_decreasing(time.raw_, time.samples_);
    return time;
}

Numbers StepTime::save() const {
    Numbers numbers(raw_.begin(), raw_.end());
    numbers.insert(numbers.end(), samples_.begin(), samples_.end());
    for (const double number : {per_row_, per_key_, least_, scale_, scatter_})
        numbers.push_back(number);
    return numbers;
}

std::optional<StepTime> StepTime::restore(std::span<const double> numbers) {
    if (numbers.size() != 2 * kCount + 5 || !are_plausible(numbers)) return std::nullopt;
    StepTime time;
    const auto rest = numbers.subspan(2 * kCount);
    const double scale = rest[3], least = rest[2] * scale;
    constexpr double kShortest = 1e-9, kLongest = 1e5;  // seconds
    if (!(least >= kShortest && scale > 0)) return std::nullopt;
    for (std::size_t k = 0; k < kCount; ++k) {
        time.raw_[k] = std::max(numbers[k] * scale, least);
        time.samples_[k] = std::min(numbers[kCount + k], 1.0);
        if (time.raw_[k] > kLongest) return std::nullopt;
    }
    time.per_row_ = rest[0] * scale;
    time.per_key_ = rest[1] * scale;
    time.least_ = least;
    time.scatter_ = std::clamp(rest[4], kLeastScatter, 0.2);
    if (std::max(time.per_row_, time.per_key_) > kLongest) return std::nullopt;
    time.curve_ = not_decreasing(time.raw_, time.samples_);
    return time;
}

double StepTime::seconds(const StepSize& size) const {
    CHECK(size.rows >= 0 && size.tokens >= 0 && size.keys >= 0, "{} rows, {} tokens, {} keys",
          size.rows, size.tokens, size.keys);
    const auto [left, share] = segment_of(size.tokens);
    const double on_curve = curve_[left] + share * (curve_[left + 1] - curve_[left]);
    const double fitted =
        on_curve + per_row_ * static_cast<double>(size.rows) + per_key_ * size.keys;
    const double least = kPromptSlack * prompt_token_ * static_cast<double>(size.tokens);
    return scale_ * std::max({fitted, least, least_});
}

void StepTime::visit(const StepSample& sample) {
    constexpr double kForget = 0.98;  // what was seen 100 steps ago counts for 0.13
    const Segment segment = segment_of(sample.size.tokens);
    const double share = std::min(segment.share, 1.0);
    for (double& count : samples_) count *= kForget;
    samples_[segment.left] += 1 - share;
    samples_[segment.left + 1] += share;
    if (sample.size.tokens < kPromptTokens) return;
    const double token = sample.seconds / scale_ / static_cast<double>(sample.size.tokens);
    prompt_token_ = prompt_token_ == 0 ? token : std::min(prompt_token_, token);
}

// True if a step says nothing of its size. Where steps are slow for long, they are believed.
bool StepTime::disturbed(double ratio, bool known) {
    constexpr double kSlow = 2;  // times the prediction
    constexpr std::int64_t kLasting = 48,
                           kBelieved = 16;  // slow steps beyond the others; fine ones
    if (believed_steps_ > 0) {
        if (ratio < kSlow) --believed_steps_;
        return false;
    }
    if (ratio < kSlow) {
        if (known) slow_steps_ = std::max<std::int64_t>(slow_steps_ - 2, 0);
        return false;
    }
    if (!known && slow_steps_ == 0) return false;
    if (++slow_steps_ < kLasting) return true;
    slow_steps_ = 0;
    believed_steps_ = kBelieved;
    return true;
}

bool StepTime::observe(const StepSample& sample) {
    constexpr double kScaleRate = 0.05, kPlaceRate = 0.1, kScatterRate = 0.05;
    constexpr double kWild = 4;   // times the usual scatter: no step says more than this
    constexpr double kKnown = 4;  // samples at a place, from which on that holds
    constexpr double kNew = 10;   // before: the estimate may have been a guess
    // Share of the prediction: the estimate was wrong, by no more than this at a time.
    constexpr double kFast = 0.5, kFastest = 0.25;
    if (!usable(sample)) return false;
    const Segment segment = segment_of(sample.size.tokens);
    const double share = std::min(segment.share, 1.0);
    const double seen = (1 - share) * samples_[segment.left] + share * samples_[segment.left + 1];
    const bool known = seen >= kKnown;
    const double predicted = seconds(sample.size);
    if (disturbed(sample.seconds / predicted, known)) return true;
    const double error = sample.seconds / predicted - 1;
    const bool wrong = error < kFast - 1;
    const double most = known && !wrong ? kWild * scatter_ : kNew;
    const double bounded = std::clamp(error, known ? std::max(-most, kFastest - 1) : -most, most);
    if (known && !wrong) {
        scatter_ += kScatterRate * (std::abs(bounded) - scatter_);
        scatter_ = std::clamp(scatter_, kLeastScatter, 0.2);  // 0.2: a knot moves by 8 % at most
    }

    // Curve and keys share the correction as they share the time. What rows were believed to cost
    // stays, so the curve takes their part: added, not multiplied, as rows may have had it all.
    const double of_keys = std::min(scale_ * per_key_ * sample.size.keys / predicted, 1.0);
    const double place_rate = wrong ? 1 : known ? kPlaceRate : 1 / (1 + seen);
    const double correction = place_rate * (1 - of_keys) * bounded * predicted / scale_;
    // No lower than where rows have it all: from further down it would not come back, since a
    // prediction is never below least_, and keys would then be blamed for more than the whole step.
    const double lowest = least_ - per_row_ * static_cast<double>(sample.size.rows);
    const auto correct = [&](double& at, double part) { at = std::max(at + part, lowest); };
    correct(raw_[segment.left], (1 - share) * correction);
    correct(raw_[segment.left + 1], share * correction);
    per_key_ *= 1 + kPlaceRate * of_keys * std::clamp(bounded, -1.0, 1.0);
    if (known) scale_ *= 1 + kScaleRate * bounded;
    visit(sample);
    curve_ = not_decreasing(raw_, samples_);
    return sample.seconds > 2 * predicted;
}

}  // namespace espalier::speculate
