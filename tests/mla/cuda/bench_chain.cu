// SPDX-License-Identifier: Apache-2.0
// Prints what a call of invariant attention adds to a chain of dependent launches: a small kernel
// that writes the queries, the call, a small kernel that reads its output, each with programmatic
// launch, as in the layers of a step. Keys are cold: consecutive calls read other pages. 0 tokens
// of a tree stand for causal rows. The last column is what the plan adds in the call's place.
//   bench_chain [format] [rows keys heads tokens tree …]
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/device.hpp"
#include "mla/contract.hpp"
#include "mla/storage.hpp"

namespace espalier::mla {
namespace {

constexpr std::int64_t kPoolBytes = 1'600'000'000;
constexpr int kCalls = 200;  // in one replay
constexpr int kReplays = 7;

struct Shape {
    int rows, keys, heads, tokens;
    bool tree;
};
constexpr Shape kShapes[] = {
    {1, 256, 16, 1, false},  {1, 512, 16, 1, false},   {1, 1024, 16, 1, false},
    {1, 1200, 16, 1, false}, {1, 2048, 16, 1, false},  {1, 8192, 16, 1, false},
    {1, 1024, 16, 2, false}, {1, 1024, 16, 4, false},  {1, 1024, 16, 4, true},
    {1, 1024, 16, 8, true},  {1, 1024, 128, 1, false}, {4, 1024, 16, 1, false},
    {16, 512, 16, 1, false}, {10, 2048, 16, 4, false}, {64, 1024, 16, 1, false},
};

__device__ void let_next_start_and_wait() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
}
__global__ void write_queries(__nv_bfloat16* query, const __nv_bfloat16* from, int count) {
    let_next_start_and_wait();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        query[i] = from[i];
}
__global__ void read_output(const __nv_bfloat16* out, float* sum, int count) {
    let_next_start_and_wait();
    float own = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        own += __bfloat162float(out[i]);
    if (own == 1.2345f) *sum = own;  // so that it is read
}

template <typename T>
T value_or_throw(Expected<T> made) {
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}
void check(const Expected<void>& done) {
    if (!done) throw std::runtime_error(done.error().message);
}

template <typename... Params, typename... Arguments>
void launch(void (*kernel)(Params...), cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(64);
    config.blockDim = dim3(256);
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = 1;
    if (const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
        status != cudaSuccess)
        throw std::runtime_error(cudaGetErrorString(status));
}

class Bench {
  public:
    explicit Bench(KvFormat format)
        : gpu_(value_or_throw(make_cuda_device())),
          kernels_(value_or_throw(make_cuda_kernels(*gpu_))) {
        kv_.format = format;
        kv_.page_tokens = 64;
        kv_.page_stride = page_stride_bytes(format, 64);
        kv_.page_count = kPoolBytes / kv_.page_stride;
        kv_.scale = 0.02f;
        pool_ = value_or_throw(
            gpu_->allocate(static_cast<std::size_t>(kv_.page_count * kv_.page_stride)));
        kv_.data = pool_.data();
        fill_pool();
    }

    void run(const Shape& shape) {
        lay(shape);
        const double without = seconds(shape, Between::nothing);
        const auto added = [&](Between between) {
            return (seconds(shape, between) - without) * 1e6;
        };
        fmt::print("{:4} x {:6} heads {:4} tokens {:3} {:6} {:8.2f} {:8.2f} {:8.2f} {:8.2f}\n",
                   shape.rows, shape.keys, shape.heads, shape.tokens,
                   shape.tree ? "tree" : "causal", without * 1e6, added(Between::call),
                   added(Between::settled_call), added(Between::plan));
        std::fflush(stdout);
    }

  private:
    template <typename T>
    T* put(const std::vector<T>& values) {
        const std::size_t bytes = values.size() * sizeof(T);
        memory_.push_back(value_or_throw(gpu_->allocate(bytes)));
        if (cudaMemcpy(memory_.back().data(), values.data(), bytes, cudaMemcpyHostToDevice) !=
            cudaSuccess)
            throw std::runtime_error("a copy failed");
        return memory_.back().template as<T>();
    }
    void fill_pool() {
        constexpr std::int64_t kPattern = 64;
        std::vector<std::byte> pattern(static_cast<std::size_t>(kPattern * kv_.page_stride));
        KvPages image = kv_;
        image.data = pattern.data();
        image.page_count = kPattern;
        std::mt19937 random(5);
        std::normal_distribution<float> normal;
        std::vector<float> key(kKey);
        for (std::int64_t slot = 0; slot < kPattern * 64; ++slot) {
            for (float& x : key) x = normal(random);
            write_slot(image, slot, key.data(), key.data() + kLatent);
        }
        for (std::int64_t page = 0; page < kv_.page_count; page += kPattern)
            cudaMemcpy(kv_.data + page * kv_.page_stride, pattern.data(),
                       static_cast<std::size_t>(std::min(kPattern, kv_.page_count - page) *
                                                kv_.page_stride),
                       cudaMemcpyHostToDevice);
    }

    void lay(const Shape& shape) {
        memory_.clear();
        call_ = {};
        RaggedRows& rows = call_.rows;
        std::vector<std::int32_t> starts(static_cast<std::size_t>(shape.rows) + 1);
        for (std::size_t b = 0; b < starts.size(); ++b)
            starts[b] = static_cast<std::int32_t>(b) * shape.tokens;
        const auto batch = static_cast<std::size_t>(shape.rows);
        std::vector<std::uint64_t> words;  // two children to a node
        for (int b = 0; b < shape.rows; ++b)
            for (int node = 0; node < shape.tokens; ++node)
                words.push_back((node == 0 ? 0 : words[words.size() - node + (node - 1) / 2]) |
                                std::uint64_t{1} << node);
        rows.rows = shape.rows;
        rows.token_end = starts.back();
        rows.max_q_len = shape.tokens;
        rows.max_kv_len = shape.keys;
        pages_ = shape.rows * ((shape.keys + 63) / 64);
        rows.block_stride = pages_ / shape.rows;
        rows.q_indptr = put(starts);
        rows.kv_len = put(std::vector<std::int32_t>(batch, shape.keys));
        rows.mask =
            put(std::vector<MaskKind>(batch, shape.tree ? MaskKind::tree : MaskKind::causal));
        rows.words = put(words);
        std::vector<std::int32_t> order(static_cast<std::size_t>(kv_.page_count));
        std::iota(order.begin(), order.end(), 0);
        std::mt19937 random(7);
        std::shuffle(order.begin(), order.end(), random);
        tables_ = put(order);
        packed_ = static_cast<int>(rows.token_end) * shape.heads;
        std::vector<__nv_bfloat16> query(static_cast<std::size_t>(packed_ * kKey));
        std::normal_distribution<float> normal;
        for (auto& x : query) x = __float2bfloat16(normal(random));
        from_ = put(query);
        query_ = put(query);
        out_ = put(std::vector<__nv_bfloat16>(static_cast<std::size_t>(packed_ * kLatent)));
        sum_ = put(std::vector<float>(1));
        rows.block_table = tables_;
        call_.q = reinterpret_cast<std::byte*>(query_);
        call_.out = reinterpret_cast<std::byte*>(out_);
        call_.heads = shape.heads;
        call_.kv = kv_;
        call_.scale = 0.0721687836f;
    }

    enum class Between { nothing, call, settled_call, plan };

    // Seconds of one turn of the chain.
    double seconds(const Shape& shape, Between between) {
        Capacities most;
        most.heads = shape.heads;
        most.rows = shape.rows;
        most.tokens = call_.rows.token_end;
        most.max_q_len = shape.tokens;
        most.max_kv_len = shape.keys;
        most.invariant = true;
        const Buffer plan = value_or_throw(gpu_->allocate(kernels_->plan_bytes(most)));
        Arena arena(value_or_throw(gpu_->allocate(kernels_->scratch_bytes(most))));
        call_.plan = const_cast<std::byte*>(plan.data());
        call_.history_stands = between == Between::settled_call;
        OpContext context{*gpu_, arena};
        check(kernels_->plan(context, call_));
        check(context.synchronize());
        const auto stream = static_cast<cudaStream_t>(context.stream);
        int next = 0;
        const auto work = [&]() -> Expected<void> {
            for (int i = 0; i < kCalls; ++i) {
                launch(write_queries, stream, query_, static_cast<const __nv_bfloat16*>(from_),
                       static_cast<int>(packed_ * kKey));
                next = (next + 1) % static_cast<int>(kv_.page_count / pages_);
                call_.rows.block_table = tables_ + next * pages_;
                if (between != Between::nothing)
                    ESPALIER_RETURN_IF_ERROR(between == Between::plan
                                                 ? kernels_->plan(context, call_)
                                                 : kernels_->absorbed(context, call_));
                launch(read_output, stream, static_cast<const __nv_bfloat16*>(out_), sum_,
                       static_cast<int>(packed_ * kLatent));
            }
            return {};
        };
        const auto graph = value_or_throw(gpu_->record(gpu_->stream(), work));
        std::vector<double> times;
        for (int replay = 0; replay <= kReplays; ++replay)
            times.push_back(value_or_throw(graph->timed_play()));
        times.erase(times.begin());
        std::nth_element(times.begin(), times.begin() + kReplays / 2, times.end());
        return times[kReplays / 2] / kCalls;
    }

    std::unique_ptr<Device> gpu_;
    std::unique_ptr<Kernels> kernels_;
    KvPages kv_;
    Buffer pool_;
    std::vector<Buffer> memory_;
    AbsorbedCall call_;
    std::int32_t* tables_ = nullptr;
    std::int64_t pages_ = 0;
    int packed_ = 0;
    __nv_bfloat16 *query_ = nullptr, *from_ = nullptr, *out_ = nullptr;
    float* sum_ = nullptr;
};

}  // namespace
}  // namespace espalier::mla

int main(int argc, char** argv) {
    using namespace espalier::mla;
    const std::string name = argc > 1 ? argv[1] : "bf16";
    KvFormat format = KvFormat::bf16;
    for (const KvFormat one :
         {KvFormat::bf16, KvFormat::fp16, KvFormat::fp8_tensor, KvFormat::fp8_token})
        if (name_of(one) == name) format = one;
    Bench bench(format);
    fmt::print("{}: microseconds of the two other kernels, added by the call, settled, the plan\n",
               name_of(format));
    if (argc > 6)
        for (int i = 2; i + 4 < argc; i += 5)
            bench.run({std::atoi(argv[i]), std::atoi(argv[i + 1]), std::atoi(argv[i + 2]),
                       std::atoi(argv[i + 3]), std::atoi(argv[i + 4]) != 0});
    else
        for (const Shape& shape : kShapes) bench.run(shape);
    return 0;
}
