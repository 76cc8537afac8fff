// SPDX-License-Identifier: Apache-2.0
// The body shared by all variants, written over a Weight policy. Each kernels_*.cpp includes it
// between ESPALIER_ISA_BEGIN and END inside its anonymous namespace, so every variant compiles its
// own copy; the includer has included what this needs. No include guard on purpose: a file includes
// it once.
//
// A policy says:  Acc, zero(), load(float*), store(float*, Acc), multiply_add(Acc a, float* scale,
// Acc b) = a·scale + b
//                 Packed: one step of one panel's weights
//                 unpack(bytes, Packed[kGroup]), and unpack_one(bytes) where kGroup > 1
//                 step(Acc, Packed, x): acc plus one step's products, k ascending
//                 kStepK, kStepBytes (weights), kGroup, kBytesPerK (x tile), kScaled, kMaxRows,
//                 kAccumulators

#if defined(__clang__)
#define ESPALIER_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ESPALIER_UNROLL _Pragma("GCC unroll 24")
#endif

// How far ahead of use a panel's weights are asked for, into the second-level cache: panels lie
// multiples of 4 KiB apart, so in the first level eight of them would fight for the same eight
// ways. One row on Zen 4, share of the read bandwidth: 72 % into the first level, 91–96 % so; eight
// rows need the longer reach (62 → 90 % of peak).
template <class Weight, int kPanels>
constexpr std::int64_t steps_ahead() {
    return (kPanels >= 4 ? 1024 : 4096) / Weight::kStepBytes;
}

// `steps` steps of kRows × kPanels chains; each line of weights read asks for the one `ahead` bytes
// behind it.
template <class Weight, int kRows, int kPanels>
inline void chain(typename Weight::Acc (&acc)[kPanels][kRows], const std::byte* x,
                  const std::byte* w, std::int64_t panel_stride, std::int64_t steps,
                  std::int64_t ahead) {
    constexpr std::int64_t kRowStride = tile_stride(kRows, Weight::kBytesPerK);
    constexpr int kGroup = Weight::kGroup;
    constexpr int kXStep = Weight::kStepK * Weight::kBytesPerK;
    std::int64_t step = 0;
    for (; step + kGroup <= steps; step += kGroup) {
        ESPALIER_UNROLL
        for (int panel = 0; panel < kPanels; ++panel) {
            const std::byte* weights = w + panel * panel_stride;
            __builtin_prefetch(weights + ahead, 0, 2);
            typename Weight::Packed packed[kGroup];
            Weight::unpack(weights, packed);
            ESPALIER_UNROLL
            for (int i = 0; i < kGroup; ++i) {
                ESPALIER_UNROLL
                for (int row = 0; row < kRows; ++row)
                    acc[panel][row] =
                        Weight::step(acc[panel][row], packed[i], x + row * kRowStride + i * kXStep);
            }
        }
        w += kGroup * Weight::kStepBytes;
        x += kGroup * kXStep;
    }
    if constexpr (kGroup > 1) {
        for (; step < steps; ++step) {
            ESPALIER_UNROLL
            for (int panel = 0; panel < kPanels; ++panel) {
                const typename Weight::Packed packed = Weight::unpack_one(w + panel * panel_stride);
                ESPALIER_UNROLL
                for (int row = 0; row < kRows; ++row)
                    acc[panel][row] = Weight::step(acc[panel][row], packed, x + row * kRowStride);
            }
            w += Weight::kStepBytes;
            x += kXStep;
        }
    }
}

// One chain per output over the whole depth.
template <class Weight, int kRows, int kPanels>
inline void plain_panels(const TileCall& call, std::int64_t first_panel) {
    typename Weight::Acc acc[kPanels][kRows];
    float* out = call.acc + first_panel * kRows * kPanel;
    ESPALIER_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
        ESPALIER_UNROLL
        for (int row = 0; row < kRows; ++row)
            acc[panel][row] =
                call.first ? Weight::zero() : Weight::load(out + (panel * kRows + row) * kPanel);
    }
    // Towards the end of these panels ask for the beginning of the next ones.
    constexpr std::int64_t kStepsAhead = steps_ahead<Weight, kPanels>();
    const std::byte* w = call.w + first_panel * call.panel_stride;
    const std::int64_t steps = call.depth / Weight::kStepK;
    const std::int64_t early =
        steps > kStepsAhead ? (steps - kStepsAhead) / Weight::kGroup * Weight::kGroup : 0;
    chain<Weight, kRows, kPanels>(acc, call.x, w, call.panel_stride, early,
                                  kStepsAhead * Weight::kStepBytes);
    const std::int64_t early_bytes = early * Weight::kStepBytes;
    chain<Weight, kRows, kPanels>(acc, call.x + early * Weight::kStepK * Weight::kBytesPerK,
                                  w + early_bytes, call.panel_stride, steps - early,
                                  kPanels * call.panel_stride - early_bytes);
    ESPALIER_UNROLL
    for (int panel = 0; panel < kPanels; ++panel) {
        ESPALIER_UNROLL
        for (int row = 0; row < kRows; ++row)
            Weight::store(out + (panel * kRows + row) * kPanel, acc[panel][row]);
    }
}

// One chain per block of 128, then total = chain · scale + total, blocks ascending.
template <class Weight, int kRows, int kPanels>
inline void scaled_panels(const TileCall& call, std::int64_t first_panel) {
    constexpr std::int64_t kBlockBytes = kScaleBlock / Weight::kStepK * Weight::kStepBytes;
    float* out = call.acc + first_panel * kRows * kPanel;
    const float* scales = call.scales + first_panel * call.scale_stride;
    const std::byte* const first_w = call.w + first_panel * call.panel_stride;
    const std::byte* w = first_w;
    const std::byte* x = call.x;
    bool begin = call.first;
    for (std::int64_t left = call.depth; left > 0; left -= kScaleBlock) {
        const std::int64_t steps = (left < kScaleBlock ? left : kScaleBlock) / Weight::kStepK;
        const std::int64_t ahead =
            left > kScaleBlock ? kBlockBytes : first_w + kPanels * call.panel_stride - w;
        typename Weight::Acc acc[kPanels][kRows];
        ESPALIER_UNROLL
        for (int panel = 0; panel < kPanels; ++panel) {
            ESPALIER_UNROLL
            for (int row = 0; row < kRows; ++row) acc[panel][row] = Weight::zero();
        }
        chain<Weight, kRows, kPanels>(acc, x, w, call.panel_stride, steps, ahead);
        ESPALIER_UNROLL
        for (int panel = 0; panel < kPanels; ++panel) {
            ESPALIER_UNROLL
            for (int row = 0; row < kRows; ++row) {
                float* total = out + (panel * kRows + row) * kPanel;
                const typename Weight::Acc before = begin ? Weight::zero() : Weight::load(total);
                Weight::store(
                    total, Weight::multiply_add(acc[panel][row], scales + panel * call.scale_stride,
                                                before));
            }
        }
        begin = false;
        scales += kPanel;
        w += steps * Weight::kStepBytes;
        x += steps * Weight::kStepK * Weight::kBytesPerK;
    }
}

// As many panels at once as the registers hold: one row alone would wait for each product to
// finish.
template <class Weight, int kRows, int kPanels>
inline std::int64_t run_panels(const TileCall& call, std::int64_t panel) {
    for (; panel + kPanels <= call.panels; panel += kPanels) {
        if constexpr (Weight::kScaled)
            scaled_panels<Weight, kRows, kPanels>(call, panel);
        else
            plain_panels<Weight, kRows, kPanels>(call, panel);
    }
    if constexpr (kPanels > 1) panel = run_panels<Weight, kRows, kPanels / 2>(call, panel);
    return panel;
}

template <class Weight>
constexpr int panels_at_once(int rows) {
    int panels = 8;
    while (panels > 1 && panels * rows > Weight::kAccumulators) panels /= 2;
    return panels;
}

template <class Weight, int kRows>
void tile_kernel(const TileCall& call) {
    run_panels<Weight, kRows, panels_at_once<Weight>(kRows)>(call, 0);
}

template <class Weight, int... kIndex>
constexpr WeightKernels kernels_for(FillRow fill_row, std::integer_sequence<int, kIndex...>) {
    WeightKernels kernels;
    kernels.max_rows = Weight::kMaxRows;
    kernels.bytes_per_k = Weight::kBytesPerK;
    kernels.fill_row = fill_row;
    ((kernels.tile[kIndex + 1] = tile_kernel<Weight, kIndex + 1>), ...);
    return kernels;
}

template <class Weight>
constexpr WeightKernels kernels_for(FillRow fill_row) {
    return kernels_for<Weight>(fill_row, std::make_integer_sequence<int, Weight::kMaxRows>());
}
