// SPDX-License-Identifier: Apache-2.0
// Guarantee 4 where calls overlap: layers of a step, one after another on a stream without a pause,
// each with what a decode step has in front of its attention. The rows' own slots first get other
// numbers, then theirs; a call that has been told that the rest stands may begin meanwhile, and
// gives the bits of a call that had the device to itself.
#include <algorithm>

#include "conformance/checks.hpp"

namespace espalier::conformance {

using namespace mla;

namespace {

constexpr int kLayers = 4;

// The last q_len slots of every row, and what lies there.
struct OwnSlots {
    std::vector<std::int64_t> slot;
    std::vector<float> key;    // [slots, 576]
    std::vector<float> other;  // the same, other numbers
};

OwnSlots own_slots(Random& random, const std::vector<Row>& rows, const Batch& batch) {
    OwnSlots own;
    for (std::size_t b = 0; b < rows.size(); ++b) {
        const Row& row = rows[b];
        for (int c = std::max(row.keys - row.tokens, 0); c < row.keys && row.tokens > 0; ++c) {
            own.slot.push_back(batch.slot(b, c));
            const auto key = row.key.begin() + std::ptrdiff_t{c} * kKey;
            own.key.insert(own.key.end(), key, key + kKey);
        }
    }
    own.other.resize(own.key.size());
    for (float& number : own.other) number = random.normal();
    return own;
}

// OwnSlots on the device.
class Appends {
  public:
    static Expected<Appends> place(Device& device, const OwnSlots& own, const KvPages& kv) {
        Appends appends;
        appends.tokens_ = std::ssize(own.slot);
        appends.kv_ = kv;
        ESPALIER_ASSIGN_OR_RETURN(appends.slot_, put(device, own.slot));
        ESPALIER_ASSIGN_OR_RETURN(appends.key_, put(device, own.key));
        ESPALIER_ASSIGN_OR_RETURN(appends.other_, put(device, own.other));
        return appends;
    }
    AppendCall call(bool right) const {
        AppendCall call;
        call.tokens = tokens_;
        call.latent = (right ? key_ : other_).as<float>();
        call.rope = call.latent + kLatent;
        call.latent_stride = call.rope_stride = kKey;
        call.slot = slot_.as<std::int64_t>();
        call.kv = kv_;
        return call;
    }

  private:
    template <typename T>
    static Expected<Buffer> put(Device& device, const std::vector<T>& values) {
        const std::size_t bytes = values.size() * sizeof(T);
        ESPALIER_ASSIGN_OR_RETURN(Buffer memory, device.allocate(bytes));
        ESPALIER_RETURN_IF_ERROR(device.upload(memory.data(), values.data(), bytes));
        return memory;
    }

    std::int64_t tokens_ = 0;
    KvPages kv_;
    Buffer slot_, key_, other_;
};

// One row or a few, as short calls have them, or hostile ones.
std::vector<Row> rows_of_layer(Trial& trial, int heads) {
    if (trial.random.chance(0.5)) return hostile_rows(trial.random, heads, 10000);
    std::vector<Row> rows;
    const int count = trial.random.between(1, 3);
    for (int b = 0; b < count; ++b) {
        const int tokens = trial.random.between(1, heads > 32 ? 2 : 5);
        const int keys = tokens + hostile_length(trial.random, heads > 32 ? 300 : 1300);
        const bool tree = trial.random.chance(0.3);
        rows.push_back(
            make_row(trial.random, tree ? MaskKind::tree : MaskKind::causal, heads, tokens, keys));
        if (tree) grow_tree(trial.random, rows.back(), trial.random.one_of(kShapes));
    }
    return rows;
}

}  // namespace

void check_settled_history(Trial& trial) {
    Device& device = trial.device();
    const Kernels& kernels = device.kernels();
    const int heads = trial.any_heads();
    const std::vector<Row> rows = rows_of_layer(trial, heads);
    const Batch batch(trial.format(), heads, rows, trial.any_layout());
    RunOptions options = trial.any_options();
    options.invariant = true;
    const auto expected = trial.run(batch, options);
    options.partial_bytes = trial.any_partial_bytes();
    const Capacities most = capacities_of(batch, options);
    const auto placed = trial.keep(PlacedBatch::place(device, batch), "placing");
    auto memory = trial.keep(device.allocate(kernels.plan_bytes(most)), "placing");
    if (!expected || !placed || !memory) return;
    const OwnSlots own = own_slots(trial.random, rows, batch);
    const auto appends = trial.keep(Appends::place(device, own, placed->kv()), "placing");
    if (!appends) return;
    std::vector<PlacedOutput> outputs;
    std::vector<AbsorbedCall> calls;
    for (int layer = 0; layer < kLayers; ++layer) {
        auto output = trial.keep(
            PlacedOutput::place(device, batch.tokens(), heads, trial.dims().latent, options),
            "placing");
        if (!output) return;
        outputs.push_back(std::move(*output));
        calls.push_back(absorbed_call(*placed, batch, outputs.back(), options));
        calls.back().plan = memory->data();
        calls.back().history_stands = true;
    }
    const auto step = [&](OpContext& context) -> Expected<void> {
        ESPALIER_RETURN_IF_ERROR(kernels.plan(context, calls.front()));
        ESPALIER_RETURN_IF_ERROR(context.synchronize());  // the plan and the history are there
        for (const AbsorbedCall& call : calls) {
            ESPALIER_RETURN_IF_ERROR(kernels.append(context, appends->call(false)));
            ESPALIER_RETURN_IF_ERROR(kernels.append(context, appends->call(true)));
            const Arena::Mark mark(context.arena);
            ESPALIER_RETURN_IF_ERROR(kernels.absorbed(context, call));
        }
        return {};
    };
    if (!trial.done(device.run(options.workers, kernels.scratch_bytes(most), step), "a step"))
        return;
    for (int layer = 0; layer < kLayers; ++layer) {
        const auto result = trial.keep(outputs[static_cast<std::size_t>(layer)].read(), "outputs");
        if (!result) return;
        trial.expect_none(bit_difference(*result, *expected), "call {} of a step; {}", layer,
                          describe(batch, options));
    }
}

}  // namespace espalier::conformance
