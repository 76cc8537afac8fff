// SPDX-License-Identifier: Apache-2.0
// The rule: a token's bits depend on its row of x and on the weight alone. Every token is computed
// alone, by itself in a launch, and held bit for bit to its place among 1 … 16,384 others.
#include "linalg/cuda/on_device.hpp"

namespace espalier::linalg {
namespace {

constexpr std::int64_t kTokens[] = {1,   2,   3,   5,    7,    8,    9,    15,  16,  17,
                                    24,  31,  32,  33,   48,   63,   64,   65,  96,  100,
                                    127, 128, 129, 191,  192,  200,  255,  256, 257, 300,
                                    384, 511, 512, 1037, 2048, 8192, 16384};
constexpr std::int64_t kMostTokens = 16384;

struct Case {
    WeightKind kind;
    std::int64_t n, k;
};

// Shapes of every number of segments, among them 1, 11 of one chunk, 8 of two, 7 of unequal length
// and 14; n of one tile and a bit, of several blocks.
std::vector<Case> cases() {
    std::vector<Case> all;
    for (const DType dtype : {DType::bf16, DType::e4m3})
        for (const auto& [n, k] : {std::pair{200, 128},
                                   {72, 520},
                                   {136, 1408},
                                   {152, 2048},
                                   {40, 3400},
                                   {24, 7168},
                                   {4400, 2048}})
            all.push_back({dtype, n, k});
    for (const DType dtype : {DType::f32, DType::f16}) all.push_back({dtype, 37, 520});
    all.push_back({DType::bf16, 53, 563});  // x cannot be read 16 bytes at a time
    all.push_back({DType::e4m3, 53, 563});
    for (const char* name : {"int8_32", "int4_32", "nvfp4"})
        for (const auto& [n, k] : {std::pair{200, 128},
                                   {136, 1408},
                                   {152, 2048},
                                   {40, 3400},
                                   {24, 7168},
                                   {4400, 2048},
                                   {53, 562}})
            all.push_back({grouped_kind(name), n, k});
    // Scales in f32, of 64 inputs, of 128, of whole rows.
    for (const char* name : {"int8_packed", "int8_128", "int8_row", "int4_128", "int4_256"})
        for (const auto& [n, k] : {std::pair{72, 520}, {152, 2048}})
            all.push_back({grouped_kind(name), n, k});
    return all;
}

class CudaInvariance : public testing::TestWithParam<Case> {
  protected:
    std::int64_t most_tokens() const { return n_ > 1000 ? 2048 : kMostTokens; }
    Activations random_x(std::int64_t rows, std::int64_t cols, std::uint32_t seed) const {
        return wide_random(kind_.input(), rows, cols, cols, seed);
    }

    // Launches one behind the other, each into memory of its own, all give the bits of the first: a
    // kernel that reads a stage which copies are filling again is right most of the time.
    template <typename Launch>
    void expect_same_bits(std::int64_t rows, std::int64_t cols, const Launch& launch) {
        constexpr int kRounds = 4, kLaunches = 16;
        Activations first(DType::f32, rows, cols, cols), other(DType::f32, rows, cols, cols);
        std::vector<std::unique_ptr<DeviceActivations>> y;
        for (int i = 0; i < kLaunches; ++i)
            y.push_back(std::make_unique<DeviceActivations>(*gpu_, first));
        int differ = 0;
        for (int round = 0; round < kRounds; ++round) {
            for (const auto& one : y) one->fill(std::byte{0xff});
            for (const auto& one : y) launch(one->matrix());
            if (round == 0) y.front()->download(first);
            for (const auto& one : y) {
                one->download(other);
                if (other.bytes() != first.bytes()) ++differ;
            }
        }
        EXPECT_EQ(differ, 0) << "of " << kRounds * kLaunches << " launches, " << rows << " rows";
    }

    // Scratch of a product of this many rows; NaN in every element.
    cuda::Scratch scratch(std::int64_t rows) {
        const std::size_t bytes = cuda::scratch_bytes(rows, k_);
        if (scratch_.bytes() < bytes) scratch_ = gpu_->allocate(bytes).value();
        expect_done(gpu_->fill(stream_, scratch_.data(), std::byte{0xff}, bytes));
        return {scratch_.data(), bytes};
    }

    WeightKind kind_ = GetParam().kind;
    std::int64_t n_ = GetParam().n, k_ = GetParam().k;
    std::unique_ptr<Device> gpu_ = gpu_or_throw();
    Stream stream_ = gpu_->stream();
    Buffer scratch_;
};

TEST_P(CudaInvariance, EveryTokenAloneEqualsItsPlaceAmongOthers) {
    const AnyTensor w(kind_, n_, k_, 1);
    const Weight packed = pack_on(*gpu_, {w.view()});
    const std::int64_t most = most_tokens();
    Activations host_x = random_x(most, k_, 2);
    const DeviceActivations x(*gpu_, host_x);
    Activations alone(DType::f32, most, n_, n_);
    DeviceActivations y(*gpu_, alone);
    for (std::int64_t row = 0; row < most; ++row)
        cuda::product(stream_, x.matrix().slice(row, 1), packed.view(), y.matrix().slice(row, 1),
                      Store::assign);
    y.download(alone);
    for (const std::int64_t tokens : kTokens) {
        if (tokens > most) continue;
        const std::int64_t first = tokens * 7 % (most - tokens + 1);
        for (const bool arranged : {false, true}) {
            if (arranged && tokens < 256) continue;
            Activations together(DType::f32, tokens, n_, n_);
            const DeviceActivations out(*gpu_, together);
            cuda::product(stream_, x.matrix().slice(first, tokens), packed.view(), out.matrix(),
                          Store::assign, {}, arranged ? scratch(tokens) : cuda::Scratch{});
            out.download(together);
            for (std::int64_t row = 0; row < tokens; ++row)
                ASSERT_TRUE(same_row(together, row, alone, first + row, n_))
                    << row << " of " << tokens << (arranged ? ", arranged" : "");
        }
    }
}

TEST_P(CudaInvariance, StackedIsProductPerMatrix) {
    if (n_ > 1000) return;
    const std::int64_t count = 5, x_step = (k_ + 15) / 8 * 8, y_step = n_ + 3;
    const AnyTensor tensor(kind_, count * n_, k_, 3);
    const Weight packed = pack_on(*gpu_, matrices_of(tensor, count, n_));
    for (const std::int64_t tokens : {1, 6, 17, 50, 64, 65, 130, 512, 2048}) {
        Activations host_x = random_x(tokens, count * x_step, 4);
        const DeviceActivations x(*gpu_, host_x);
        Activations stacked(DType::f32, tokens, count * y_step, count * y_step);
        stacked.fill(std::byte{0xff});
        const DeviceActivations y(*gpu_, stacked);
        cuda::stacked_product(stream_, x.matrix(), x_step, packed.view(), y.matrix(), y_step);
        y.download(stacked);
        Activations one(DType::f32, 1, n_, n_);
        const DeviceActivations single(*gpu_, one);
        for (std::int64_t s = 0; s < count; ++s)
            for (std::int64_t row = 0; row < tokens; row += 1 + tokens / 40) {
                cuda::product(stream_, x.matrix().slice(row, 1).columns(s * x_step, k_),
                              packed.view().at(s), single.matrix(), Store::assign);
                single.download(one);
                EXPECT_TRUE(same_row(stacked, row, one, 0, n_, s * y_step))
                    << "matrix " << s << ", " << row << " of " << tokens;
                // Columns between the matrices' are left alone.
                ASSERT_TRUE(std::isnan(stacked.value(row, s * y_step + n_ + 1)));
            }
    }
}

TEST_P(CudaInvariance, ExpertsGiveTheBitsOfATokenAlone) {
    if (n_ > 1000) return;
    const std::int64_t experts = 24, top_k = 3;
    const AnyTensor tensor(kind_, experts * n_, k_, 5);
    const Weight packed = pack_on(*gpu_, matrices_of(tensor, experts, n_));
    for (const std::int64_t tokens : {1, 2, 5, 8, 31, 64, 130, 512, 2048, 8192, 16384}) {
        const Routing routing(tokens, experts, top_k, static_cast<std::uint32_t>(tokens));
        const std::int64_t pairs = tokens * top_k;
        const DeviceInts indptr(*gpu_, routing.indptr), source(*gpu_, routing.source);
        for (const auto& [gathered, arranged] :
             {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
            if ((!gathered && tokens > 2048) || (arranged && tokens < 64)) continue;
            Activations host_x = random_x(gathered ? tokens : pairs + 3, k_, 6);
            const DeviceActivations x(*gpu_, host_x);
            Activations grouped(DType::f32, pairs + 3, n_, n_);  // room for three more
            grouped.fill(std::byte{0xff});
            const DeviceActivations y(*gpu_, grouped);
            cuda::expert_product(stream_, x.matrix(), gathered ? source.data() : nullptr,
                                 indptr.data(), packed.view(), y.matrix(), {},
                                 arranged ? scratch(pairs + 3) : cuda::Scratch{});
            y.download(grouped);
            Activations one(DType::f32, 1, n_, n_);
            const DeviceActivations single(*gpu_, one);
            for (std::int64_t e = 0; e < experts; ++e) {
                const auto place = static_cast<std::size_t>(e);
                const std::int64_t begin = routing.indptr[place], end = routing.indptr[place + 1];
                for (std::int64_t row = begin; row < end; row += 1 + (end - begin) / 13) {
                    const std::int64_t from =
                        gathered ? routing.source[static_cast<std::size_t>(row)] : row;
                    cuda::product(stream_, x.matrix().slice(from, 1), packed.view().at(e),
                                  single.matrix(), Store::assign);
                    single.download(one);
                    ASSERT_TRUE(same_row(grouped, row, one, 0, n_))
                        << "expert " << e << ", row " << row << " of " << tokens << " tokens";
                }
            }
            // Every row was written, and none past the last pair.
            for (std::int64_t row = 0; row < pairs + 3; ++row)
                ASSERT_EQ(std::isnan(grouped.value(row, n_ - 1)), row >= pairs) << row;
        }
    }
}

TEST_P(CudaInvariance, EveryLaunchGivesTheSameBits) {
    const std::int64_t count = 5, experts = 24, top_k = 3, step = (k_ + 15) / 8 * 8;
    const AnyTensor tensor(kind_, experts * n_, k_, 12);
    const Weight few = pack_on(*gpu_, matrices_of(tensor, count, n_));
    const Weight many = pack_on(*gpu_, matrices_of(tensor, experts, n_));
    for (const std::int64_t tokens : {6, 64, 2048}) {
        // Few tokens alone have many outputs: there a block has many items, one after the other.
        if (n_ > 1000 && tokens > 6) continue;
        const Routing routing(tokens, experts, top_k, 1);
        const DeviceInts indptr(*gpu_, routing.indptr), source(*gpu_, routing.source);
        const DeviceActivations x(*gpu_, random_x(tokens, count * step, 13));
        const Matrix narrow = x.matrix().columns(0, k_);
        const cuda::Scratch room = scratch(tokens * top_k);
        expect_same_bits(tokens, count * n_, [&](const Matrix& y) {
            cuda::stacked_product(stream_, x.matrix(), step, few.view(), y, n_);
        });
        for (const cuda::Scratch& arranged : {cuda::Scratch{}, room}) {
            expect_same_bits(tokens, n_, [&](const Matrix& y) {
                cuda::product(stream_, narrow, few.view().at(0), y, Store::assign, {}, arranged);
            });
            expect_same_bits(tokens * top_k, n_, [&](const Matrix& y) {
                cuda::expert_product(stream_, narrow, source.data(), indptr.data(), many.view(), y,
                                     {}, arranged);
            });
        }
    }
}

// A graph of an expert product, recorded once, over other routings and other x.
TEST_P(CudaInvariance, ReplayedWithAnotherRoutingIsTheSameAsEager) {
    if (n_ > 1000) return;
    const std::int64_t experts = 24, top_k = 3, tokens = 150;
    const AnyTensor tensor(kind_, experts * n_, k_, 7);
    const Weight packed = pack_on(*gpu_, matrices_of(tensor, experts, n_));
    const Routing recorded(tokens, experts, top_k, 1);
    DeviceInts indptr(*gpu_, recorded.indptr), source(*gpu_, recorded.source);
    Activations first_x = random_x(tokens, k_, 8);
    DeviceActivations x(*gpu_, first_x);
    Activations eager(DType::f32, tokens * top_k, n_, n_),
        replayed(DType::f32, tokens * top_k, n_, n_);
    DeviceActivations y(*gpu_, eager);
    const auto multiply = [&]() -> Expected<void> {
        cuda::expert_product(stream_, x.matrix(), source.data(), indptr.data(), packed.view(),
                             y.matrix());
        return {};
    };
    auto graph = gpu_->record(stream_, multiply);
    ASSERT_TRUE(graph) << graph.error().message;
    for (const std::int64_t used : {150, 1, 37, 0, 149}) {
        const Routing routing(used, experts, top_k, static_cast<std::uint32_t>(used + 2));
        indptr.upload(routing.indptr);
        source.upload(routing.source);
        x.upload(random_x(tokens, k_, static_cast<std::uint32_t>(used)));
        y.fill(std::byte{0xff});
        expect_done(multiply());
        y.download(eager);
        y.fill(std::byte{0xff});
        expect_done((*graph)->play());
        y.download(replayed);
        ASSERT_EQ(eager.bytes(), replayed.bytes()) << used;
        ASSERT_EQ(used > 0, !std::isnan(eager.value(0, 0)));
    }
}

// Two products in one launch, the first one's outputs split as queries, have the bits of the parts.
TEST_P(CudaInvariance, JointProductsHaveTheBitsOfTheirParts) {
    if (kind_.input() != DType::bf16 || k_ % 8 != 0) return;
    constexpr std::int64_t kHeads = 3, kWidth = 128, kRope = 64, kStep = 200, kSecond = 80;
    constexpr std::int64_t kQueries = kHeads * (kWidth + kRope);
    const AnyTensor w(kind_, kQueries, k_, 9), other(kind_, kSecond, k_, 10);
    const Weight packed = pack_on(*gpu_, {w.view()}), beside = pack_on(*gpu_, {other.view()});
    for (const std::int64_t tokens : {1, 2, 7, 8, 9, 16, 17, 33, 64, 1601}) {
        Activations host_x = random_x(tokens, k_, 11), angles(DType::f32, tokens, kRope, kRope);
        for (std::int64_t i = 0; i < tokens * kRope; ++i) {
            const float angle = std::cos(static_cast<float>(i));
            std::memcpy(angles.at(0, i), &angle, sizeof(angle));
        }
        const DeviceActivations x(*gpu_, host_x), cos_sin(*gpu_, angles);
        Activations sums(DType::f32, tokens, kQueries, kQueries),
            wanted(DType::f32, tokens, kSecond, kSecond), got(DType::f32, tokens, kSecond, kSecond),
            act(DType::bf16, tokens, kQueries, kQueries),
            rope(DType::bf16, tokens, kHeads * kStep, kHeads * kStep);
        for (Activations* one : {&got, &act, &rope}) one->fill(std::byte{0xff});
        const DeviceActivations y(*gpu_, sums), second(*gpu_, wanted), joint(*gpu_, got),
            to_act(*gpu_, act), to_rope(*gpu_, rope);
        cuda::product(stream_, x.matrix(), packed.view(), y.matrix(), Store::assign);
        cuda::product(stream_, x.matrix(), beside.view(), second.matrix(), Store::assign);
        y.download(sums);
        second.download(wanted);
        const cuda::Queries queries{kWidth, cos_sin.matrix(), to_act.matrix(), to_rope.matrix(),
                                    kStep};
        const bool joined = cuda::joint_product(stream_, x.matrix(), packed.view(), y.matrix(),
                                                {beside.view(), joint.matrix()}, &queries,
                                                tokens > 64 ? scratch(tokens) : cuda::Scratch{});
        // Codes in groups have no dense product with x arranged.
        const bool arranged = tokens > 64 && (kind_.codes == nullptr || kind_.name() == "nvfp4");
        ASSERT_TRUE(joined || (tokens > 8 && !arranged)) << tokens;
        if (!joined) continue;
        joint.download(got);
        to_act.download(act);
        to_rope.download(rope);
        ASSERT_EQ(got.bytes(), wanted.bytes()) << tokens;
        const auto rounded = [](float value) { return to_float(to_bf16(value)); };
        for (std::int64_t row = 0; row < tokens; ++row)
            for (std::int64_t n = 0; n < kQueries; ++n) {
                const std::int64_t head = n / (kWidth + kRope), i = n % (kWidth + kRope) - kWidth;
                if (i < 0) {
                    ASSERT_EQ(act.value(row, n), rounded(sums.value(row, n))) << row << ", " << n;
                    continue;
                }
                const float a = sums.value(row, n - i % 2), b = sums.value(row, n - i % 2 + 1);
                const float cosine = angles.value(row, i - i % 2);
                const float sine = angles.value(row, i - i % 2 + 1);
                const float turned = i % 2 == 0 ? a * cosine - b * sine : a * sine + b * cosine;
                ASSERT_EQ(rope.value(row, head * kStep + i), rounded(turned)) << row << ", " << n;
                ASSERT_TRUE(std::isnan(act.value(row, n)));  // left alone
            }
    }
}

// Two products in one launch at every number of tokens that one serves.
TEST_P(CudaInvariance, PairsOfProductsHaveTheBitsOfEach) {
    if (kind_.input() != DType::bf16 || k_ % 8 != 0) return;
    constexpr std::int64_t kFirst = 272, kSecond = 208;
    const AnyTensor w(kind_, kFirst, k_, 16), other(kind_, kSecond, k_, 17);
    const Weight packed = pack_on(*gpu_, {w.view()}), beside = pack_on(*gpu_, {other.view()});
    int joined = 0;
    for (const std::int64_t tokens : {1, 8, 17, 33, 64, 100, 128, 200, 256, 600}) {
        Activations host_x = random_x(tokens, k_, 18);
        const DeviceActivations x(*gpu_, host_x);
        Activations one(DType::f32, tokens, kFirst, kFirst),
            two(DType::f32, tokens, kSecond, kSecond), first(DType::f32, tokens, kFirst, kFirst),
            second(DType::f32, tokens, kSecond, kSecond);
        for (Activations* room : {&one, &two, &first, &second}) room->fill(std::byte{0xff});
        const DeviceActivations y(*gpu_, one), z(*gpu_, two), joint_y(*gpu_, first),
            joint_z(*gpu_, second);
        if (!cuda::joint_product(stream_, x.matrix(), packed.view(), joint_y.matrix(),
                                 {beside.view(), joint_z.matrix()}, nullptr))
            continue;
        ++joined;
        cuda::product(stream_, x.matrix(), packed.view(), y.matrix(), Store::assign);
        cuda::product(stream_, x.matrix(), beside.view(), z.matrix(), Store::assign);
        y.download(one);
        z.download(two);
        joint_y.download(first);
        joint_z.download(second);
        ASSERT_EQ(one.bytes(), first.bytes()) << tokens;
        ASSERT_EQ(two.bytes(), second.bytes()) << tokens;
    }
    EXPECT_GE(joined, 5);
}

// A product that reads what lies two kernels back runs beside the kernel in front of it. All rounds
// hand their numbers on in one place, so that a look into a stale cache, or too early, shows.
TEST_P(CudaInvariance, SettledInputsAreSeenWithoutAWait) {
    if (kind_.input() != DType::bf16 || k_ % 8 != 0 || n_ % 8 != 0) return;
    constexpr std::int64_t kRounds = 40;
    const AnyTensor down(kind_, n_, k_, 12), up(kind_, k_, n_, 13);
    const Weight narrow = pack_on(*gpu_, {down.view()}), wide = pack_on(*gpu_, {up.view()});
    for (const std::int64_t tokens : {1, 40, 200}) {
        Activations host_x = random_x(kRounds * tokens, k_, 14);
        Activations together(DType::f32, kRounds * tokens, k_, k_),
            in_turn(DType::f32, kRounds * tokens, k_, k_);
        const DeviceActivations x(*gpu_, host_x), handed(*gpu_, random_x(tokens, n_, 15)),
            aside(*gpu_, Activations(DType::f32, tokens, n_, n_)), z(*gpu_, together);
        Arena none{Buffer()};
        const auto run_rounds = [&](bool overlap, Activations& result) {
            const auto work = [&]() -> Expected<void> {
                OpContext context{*gpu_, none, stream_};
                const cuda::Wishes early{.early = overlap};
                cuda::Wishes holds;
                if (overlap) holds.holds_back = {range_of(handed.matrix())};
                for (std::int64_t round = 0; round < kRounds; ++round) {
                    const Matrix in = x.matrix().slice(round * tokens, tokens);
                    cuda::product(context, in, narrow.view(), handed.matrix(), Store::assign);
                    cuda::product(context, in, narrow.view(), aside.matrix(), Store::assign, holds);
                    cuda::product(context, handed.matrix(), wide.view(),
                                  z.matrix().slice(round * tokens, tokens), Store::assign, early);
                }
                return {};
            };
            auto graph = gpu_->record(stream_, work);
            ASSERT_TRUE(graph) << graph.error().message;
            expect_done((*graph)->play());
            z.download(result);
        };
        run_rounds(false, in_turn);
        run_rounds(true, together);
        ASSERT_EQ(in_turn.bytes(), together.bytes()) << tokens;
    }
}

INSTANTIATE_TEST_SUITE_P(All, CudaInvariance, testing::ValuesIn(cases()), [](const auto& param) {
    return param.param.kind.name() + "_" + std::to_string(param.param.n) + "x" +
           std::to_string(param.param.k);
});

}  // namespace
}  // namespace espalier::linalg
