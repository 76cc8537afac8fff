// SPDX-License-Identifier: Apache-2.0
#include "cli/mla_timing.hpp"

#include <algorithm>
#include <numeric>

#include "conformance/batch.hpp"
#include "mla/storage.hpp"

namespace espalier::cli {
namespace {

constexpr std::int32_t kPageTokens = 64;
constexpr std::int64_t kMostCalls = 512;  // in one replay
constexpr int kPlans = 64;                // in one replay, so that its own launch hardly counts

std::int64_t pages_of_call(const MlaShape& shape) {
    return std::int64_t{shape.batch} * ((shape.kv_len + kPageTokens - 1) / kPageTokens);
}

// The arrays of one shape on the device, and one block table per call of a replay.
class Problem {
  public:
    static Expected<Problem> create(conformance::Device& device, const PagePool& pool,
                                    const MlaShape& shape, const MlaTimingOptions& options);
    const mla::AbsorbedCall& call(std::size_t index) const { return calls_[index]; }
    std::size_t calls() const { return calls_.size(); }
    // True if the device needs a plan, which is still to be filled.
    bool planned() const { return calls_.front().plan != nullptr; }
    const mla::Capacities& capacities() const { return capacities_; }

  private:
    template <typename T>
    Expected<T*> put(conformance::Device& device, const std::vector<T>& values) {
        const std::size_t bytes = values.size() * sizeof(T);
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory, device.allocate(bytes));
        ESPALIER_RETURN_IF_ERROR(device.upload(memory.data(), values.data(), bytes));
        memory_.push_back(std::move(memory));
        return memory_.back().as<T>();
    }
    Expected<void> lay_rows(conformance::Device& device, const MlaShape& shape, bool tree,
                            mla::RaggedRows& rows);

    std::vector<Buffer> memory_;
    std::vector<mla::AbsorbedCall> calls_;
    mla::Capacities capacities_;
};

Expected<void> Problem::lay_rows(conformance::Device& device, const MlaShape& shape, bool tree,
                                 mla::RaggedRows& rows) {
    const auto batch = static_cast<std::size_t>(shape.batch);
    std::vector<std::int32_t> starts(batch + 1);
    for (std::size_t b = 0; b <= batch; ++b) starts[b] = static_cast<std::int32_t>(b) * shape.q_len;
    std::vector<int> parent(static_cast<std::size_t>(shape.q_len), -1);
    Random random(3);
    for (int node = 1; node < shape.q_len; ++node)
        parent[static_cast<std::size_t>(node)] = random.between(0, node - 1);
    std::vector<std::uint64_t> words;
    const std::vector<std::uint64_t> tree_words =
        tree ? conformance::ancestor_words(parent) : std::vector<std::uint64_t>();
    for (std::size_t b = 0; b < batch; ++b)
        words.insert(words.end(), tree_words.begin(), tree_words.end());
    rows.rows = shape.batch;
    rows.token_end = starts.back();
    rows.max_q_len = shape.q_len;
    rows.max_kv_len = shape.kv_len;
    rows.block_stride = pages_of_call(shape) / shape.batch;
    ESPALIER_ASSIGN_OR_RETURN(rows.q_indptr, put(device, starts));
    ESPALIER_ASSIGN_OR_RETURN(rows.kv_len,
                              put(device, std::vector<std::int32_t>(batch, shape.kv_len)));
    ESPALIER_ASSIGN_OR_RETURN(
        rows.mask, put(device, std::vector<mla::MaskKind>(
                                   batch, tree ? mla::MaskKind::tree : mla::MaskKind::causal)));
    ESPALIER_ASSIGN_OR_RETURN(rows.words, put(device, words));
    return {};
}

Expected<Problem> Problem::create(conformance::Device& device, const PagePool& pool,
                                  const MlaShape& shape, const MlaTimingOptions& options) {
    Problem problem;
    mla::AbsorbedCall call;
    ESPALIER_RETURN_IF_ERROR(problem.lay_rows(device, shape, options.tree, call.rows));
    call.heads = shape.heads;
    call.kv = pool.kv();
    call.scale = 0.0721687836f;
    call.q_dtype = options.query;
    call.out_dtype = options.out;
    call.invariant = options.invariant;
    call.partial_bytes = options.partial_bytes;
    const auto packed = static_cast<std::size_t>(call.rows.token_end * shape.heads);
    Random random(4);
    std::vector<float> query(packed * mla::kKey);
    for (float& x : query) x = random.normal();
    ESPALIER_ASSIGN_OR_RETURN(call.q,
                              problem.put(device, conformance::narrowed(query, options.query)));
    ESPALIER_ASSIGN_OR_RETURN(Buffer out,
                              device.allocate(packed * mla::kLatent * bytes_of(options.out)));
    ESPALIER_ASSIGN_OR_RETURN(Buffer lse, device.allocate(packed * sizeof(float)));
    call.out = out.data();
    call.lse = lse.as<float>();
    problem.memory_.push_back(std::move(out));
    problem.memory_.push_back(std::move(lse));
    problem.capacities_ = {.heads = call.heads,
                           .rows = call.rows.rows,
                           .tokens = call.rows.token_end,
                           .max_q_len = call.rows.max_q_len,
                           .max_kv_len = call.rows.max_kv_len,
                           .partial_bytes = call.partial_bytes,
                           .workers = options.workers,
                           .invariant = call.invariant,
                           .dense = false,
                           .decompressed = false};
    ESPALIER_ASSIGN_OR_RETURN(Buffer plan,
                              device.allocate(device.kernels().plan_bytes(problem.capacities_)));
    call.plan = plan.data();
    problem.memory_.push_back(std::move(plan));

    // All pages of the pool in one shuffled order; each call takes the next ones.
    const std::int64_t pages = pages_of_call(shape);
    if (pages > pool.kv().page_count)
        return fail(ErrorKind::exhausted, "{} × {} slots need {} pages, the pool has {}",
                    shape.batch, shape.kv_len, pages, pool.kv().page_count);
    std::vector<std::int32_t> order(static_cast<std::size_t>(pool.kv().page_count));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[random.bits() % i]);
    ESPALIER_ASSIGN_OR_RETURN(const std::int32_t* tables, problem.put(device, order));
    const std::int64_t calls = std::min(kMostCalls, pool.kv().page_count / pages);
    for (std::int64_t index = 0; index < calls; ++index) {
        call.rows.block_table = tables + (options.warm ? 0 : index * pages);
        problem.calls_.push_back(call);
    }
    return problem;
}

// Leaves the plan filled.
Expected<double> time_plan(conformance::Device& device, const Problem& problem,
                           const MlaTimingOptions& options) {
    const auto work = [&](OpContext& context) -> Expected<void> {
        for (int plan = 0; plan < kPlans; ++plan)
            ESPALIER_RETURN_IF_ERROR(device.kernels().plan(context, problem.call(0)));
        return {};
    };
    ESPALIER_ASSIGN_OR_RETURN(const auto recorded, device.record(options.workers, 0, work));
    ESPALIER_ASSIGN_OR_RETURN(const double seconds, median_play(*recorded, options.repetitions));
    return seconds / kPlans;
}

}  // namespace

Expected<double> median_play(RecordedWork& recorded, int repetitions) {
    std::vector<double> seconds;
    for (int repetition = -1; repetition < repetitions; ++repetition) {
        ESPALIER_ASSIGN_OR_RETURN(const double time, recorded.timed_play());
        if (repetition >= 0) seconds.push_back(time);
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    return *middle;
}

std::int64_t pool_bytes(const std::vector<MlaShape>& shapes, mla::KvFormat format,
                        std::int64_t least) {
    std::int64_t bytes = least;
    for (const MlaShape& shape : shapes)  // two calls at least
        bytes =
            std::max(bytes, 2 * pages_of_call(shape) * mla::page_stride_bytes(format, kPageTokens));
    return bytes;
}

Expected<PagePool> PagePool::create(conformance::Device& device, mla::KvFormat format,
                                    std::int64_t bytes) {
    PagePool pool;
    pool.kv_.format = format;
    pool.kv_.page_tokens = kPageTokens;
    pool.kv_.page_stride = mla::page_stride_bytes(format, kPageTokens);
    pool.kv_.page_count = bytes / pool.kv_.page_stride + 1;
    pool.kv_.scale = 0.02f;
    const std::int64_t total = pool.kv_.page_count * pool.kv_.page_stride;
    ESPALIER_ASSIGN_OR_RETURN(
        pool.memory_, device.allocate(static_cast<std::size_t>(total), conformance::Fill::none));
    pool.kv_.data = pool.memory_.data();

    // Numbers matter to the clock of a GPU, so they are normal ones: 128 pages of them, repeated.
    constexpr std::int64_t kPattern = 128;
    std::vector<std::byte> pattern(static_cast<std::size_t>(kPattern * pool.kv_.page_stride));
    mla::KvPages image = pool.kv_;
    image.data = pattern.data();
    image.page_count = kPattern;
    Random random(5);
    std::vector<float> key(mla::kKey);
    for (std::int64_t slot = 0; slot < kPattern * kPageTokens; ++slot) {
        for (float& x : key) x = random.normal();
        mla::write_slot(image, slot, key.data(), key.data() + mla::kLatent);
    }
    for (std::int64_t at = 0; at < total; at += static_cast<std::int64_t>(pattern.size())) {
        const auto count = static_cast<std::size_t>(
            std::min<std::int64_t>(total - at, static_cast<std::int64_t>(pattern.size())));
        ESPALIER_RETURN_IF_ERROR(device.upload(pool.memory_.data() + at, pattern.data(), count));
    }
    return pool;
}

Expected<CallTimes> time_absorbed(conformance::Device& device, const PagePool& pool,
                                  const MlaShape& shape, const MlaTimingOptions& options) {
    ESPALIER_ASSIGN_OR_RETURN(const Problem problem, Problem::create(device, pool, shape, options));
    CallTimes times;
    if (problem.planned()) {
        ESPALIER_ASSIGN_OR_RETURN(times.plan_seconds, time_plan(device, problem, options));
    }
    // A host replay can be as short as one call; a graph holds a whole turn through the pool.
    std::size_t next = 0;
    const std::size_t calls =
        device.is_host() ? std::min<std::size_t>(problem.calls(), 8) : problem.calls();
    const auto work = [&](OpContext& context) -> Expected<void> {
        for (std::size_t index = 0; index < calls; ++index) {
            const Arena::Mark mark(context.arena);
            ESPALIER_RETURN_IF_ERROR(
                device.kernels().absorbed(context, problem.call(next++ % problem.calls())));
        }
        return {};
    };
    ESPALIER_ASSIGN_OR_RETURN(
        const auto recorded,
        device.record(options.workers, device.kernels().scratch_bytes(problem.capacities()), work));
    ESPALIER_ASSIGN_OR_RETURN(const double seconds, median_play(*recorded, options.repetitions));
    times.seconds = seconds / static_cast<double>(calls);
    return times;
}

}  // namespace espalier::cli
