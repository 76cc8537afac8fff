// SPDX-License-Identifier: Apache-2.0
#include "engine/simulated_server.hpp"

#include <algorithm>
#include <stdexcept>

#include "base/cpu_device.hpp"
#include "batch/captured_steps.hpp"
#include "batch/device_batch.hpp"
#include "draft/followed.hpp"
#include "engine/tiny_target.hpp"

namespace espalier::engine {
namespace {

constexpr std::int64_t kStepTokens = 2048;

std::uint64_t mix(std::uint64_t x) {
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

// Token behind a token in the text that begins on this page.
std::int32_t next_token(std::int32_t page, std::int64_t position, std::int32_t token) {
    const auto key = (static_cast<std::uint64_t>(page) << 40) ^
                     (static_cast<std::uint64_t>(position) << 16) ^
                     static_cast<std::uint64_t>(token);
    return 2 + static_cast<std::int32_t>(mix(key) % (SimulatedServer::kVocabulary - 2));
}

class SimulatedTarget final : public Target {
  public:
    SimulatedTarget(SimulatedClock& clock, const SimulatedMachine& machine, std::int64_t page_count)
        : clock_(clock),
          machine_(machine),
          info_{
              .vocabulary = SimulatedServer::kVocabulary,
              .eos_token_ids = {1},
              .limits = {.max_tokens = kStepTokens, .max_gather = kStepTokens, .max_kv_len = 4096},
              .kv_layout = cache::make_layout(1, mla::KvFormat::bf16),
              .pair_cost = {.absorbed = machine.key / machine.prompt_token_time()},
              .page_count = page_count} {}

    const TargetInfo& info() const override { return info_; }
    Expected<void> reserve(const StepRoom&) override { return {}; }
    Expected<void> run(const batch::HostBatch& host, const ops::SamplingBatchBuilder*) override {
        const std::int64_t bucket =
            machine_.graphs ? batch::token_bucket(host.capacity.tokens()) : 0;
        const std::int64_t tokens = bucket > 0 ? bucket : host.capacity.tokens();
        ESPALIER_ASSIGN_OR_RETURN(const batch::BatchView batch,
                                  batch_.upload(device_.stream(), host));
        double keys = 0;
        for (std::int64_t i = 0; i < batch.cap_tokens; ++i) keys += batch.position[i];
        clock_.begin_step();
        clock_.pass(machine_.per_row * static_cast<double>(host.capacity.table_rows));
        done_ = clock_.now + clock_.taken((machine_.step_time(tokens) + machine_.key * keys) *
                                          (clock_.drafted ? 1 + machine_.displaced : 1));
        clock_.drafted = false;
        if (!machine_.beside) clock_.now = done_;
        nonfinite_.assign(static_cast<std::size_t>(batch.cap_tokens), 0);
        draws_.clear();
        for (std::int64_t g = 0; g < batch.cap_gather; ++g) {
            const std::int32_t token = batch.gather[g];
            const bool absorbed = token < batch.cap_absorbed;
            const mla::RaggedRows& rows = absorbed ? batch.absorbed : batch.decompressed;
            const std::int32_t row = batch.row_of[token];
            const std::int32_t page =
                rows.block_table[mla::table_of(rows, row) * rows.block_stride];
            draws_.push_back({next_token(page, batch.position[token], batch.tokens[token]), -1.0f,
                              ops::DrawFlag::fine});
        }
        return {};
    }
    Expected<StepResult> wait() override {
        clock_.now = std::max(clock_.now, done_);
        return StepResult{.draws = draws_, .alternatives = {}, .nonfinite = nonfinite_};
    }
    Expected<void> compact(std::span<const std::int64_t>, std::span<const std::int64_t>) override {
        return {};
    }

  private:
    SimulatedClock& clock_;
    schedule::Time done_ = 0;
    const SimulatedMachine& machine_;
    TargetInfo info_;
    CpuDevice device_{1};
    batch::DeviceBatch batch_{device_};
    std::vector<ops::Draw> draws_;
    std::vector<std::uint8_t> nonfinite_;
};

class SimulatedSource final : public speculate::Drafter {
  public:
    SimulatedSource(SimulatedClock& clock, const SimulatedMachine& machine,
                    const SimulatedDrafter& habits, std::uint64_t id, std::int64_t& looked_on,
                    std::int64_t pages)
        : clock_(clock),
          machine_(machine),
          habits_(habits),
          id_(id),
          name_("drafter " + std::to_string(id)),
          looked_on_(looked_on),
          followed_(pages) {}

    std::string_view name() const override { return name_; }
    speculate::DrafterNeeds needs() const override {
        return {.hidden_states = habits_.passes,
                .draft_cache = habits_.passes,
                .passes = habits_.passes};
    }
    void begin(RequestSlot request, std::span<const std::int32_t> prompt, std::int64_t) override {
        followed_.begin(request);
        const double wide = 2 * unit(mix(static_cast<std::uint64_t>(prompt[0]) * 512 +
                                         static_cast<std::uint64_t>(prompt[1]))) -
                            1;
        const bool chat =
            prompt[0] == SimulatedServer::kChat && prompt[1] == SimulatedServer::kChat;
        const double right = chat ? habits_.right_in_chats : habits_.right;
        right_.grown_to(request) =
            right > 0 ? std::clamp(right + wide * habits_.spread, 0.0, 0.98) : 0;
    }
    void end(RequestSlot) override {}
    void commit(std::span<const speculate::Commitment> commitments) override {
        for (const speculate::Commitment& one : commitments)
            if (!habits_.passes)
                clock_.pass(machine_.free_token * static_cast<double>(one.tokens.size()));
    }
    Expected<void> extend(std::span<const speculate::Extension> extensions) override {
        std::size_t tokens = 0;
        for (const speculate::Extension& one : extensions) {
            tokens += one.tokens.size();
            followed_.add(one);
        }
        clock_.pass(machine_.look_on + machine_.look_token * static_cast<double>(tokens));
        ++looked_on_;
        return {};
    }
    void preempted(RequestSlot request) override { followed_.begin(request); }
    void forget() override { followed_.forget(); }
    bool follows(RequestSlot request, std::int64_t root_position) const override {
        if (!habits_.passes) return true;
        clock_.pass(machine_.plan_row);
        return followed_.whole(request, root_position);
    }
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override {
        std::int32_t levels = 0;
        std::int64_t computed = 0, nodes = 0;
        for (const speculate::DraftCall& call : calls) {
            computed += grow(call);
            levels = std::max(levels, call.shape.depth);
            // Texts that repeat do so in many places: an n-gram fills its tree.
            nodes += call.proposal->tree.size() > 1 ? call.shape.nodes - 1 : 0;
        }
        clock_.drafted = clock_.drafted || habits_.passes;
        clock_.pass(habits_.passes ? machine_.draft_call + machine_.draft_level * levels +
                                         machine_.draft_token * static_cast<double>(computed)
                                   : machine_.free_row * static_cast<double>(calls.size()) +
                                         machine_.free_node * static_cast<double>(nodes));
        return {};
    }

  private:
    static double unit(std::uint64_t bits) {
        return static_cast<double>(bits >> 11) / static_cast<double>(std::uint64_t{1} << 53);
    }
    // Texts repeat themselves for a stretch, or do not.
    bool has_match(std::int32_t page, std::int64_t position) const {
        constexpr std::int64_t kStretch = 12;
        const auto place = (static_cast<std::uint64_t>(page) << 32) +
                           static_cast<std::uint64_t>(position / kStretch) * 8 + id_;
        return unit(mix(place)) < habits_.offers;
    }
    // A tree of two choices a node, grown from the best `width` of each level. Returns how many
    // nodes its passes computed.
    std::int64_t grow(const speculate::DraftCall& call) const {
        struct Node {
            std::int32_t index, token;
            bool right;
        };
        const std::int32_t page = call.block_table.empty() ? 0 : call.block_table[0];
        const double right =
            std::min(right_[call.request] * (call.coupled ? habits_.coupled : 1), 0.98);
        std::vector<Node> frontier = {{0, call.proposal->tree.token(0), true}};
        std::int64_t computed = 0;
        const std::int32_t depth = std::min(call.shape.depth, habits_.passes ? 16 : 12);
        for (std::int32_t level = 0; level < depth && !frontier.empty(); ++level) {
            const std::int64_t position = call.root_position + level;
            std::vector<Node> next;
            for (const Node& node : frontier) {
                ++computed;
                const std::int32_t truth = next_token(page, position, node.token);
                const auto key = static_cast<std::uint64_t>(next_token(
                    page, position + 7919 + static_cast<std::int64_t>(id_) * 104729, node.token));
                const std::uint64_t bits = mix(key * 977 + static_cast<std::uint64_t>(position) +
                                               (static_cast<std::uint64_t>(page) << 32) + id_);
                const bool offers = has_match(page, position);
                if (level == 0 && !offers) return computed;
                const bool first = node.right && offers && unit(mix(bits + 1)) < right;
                const bool second = node.right && !first &&
                                    unit(mix(bits + 2)) < habits_.second * std::min(1.0, 2 * right);
                const auto wrong = [&](int salt) {
                    return 2 + (truth - 2 + salt) %
                                   static_cast<std::int32_t>(SimulatedServer::kVocabulary - 2);
                };
                const double sure = unit(mix(bits + 3));
                const double score = first ? 0.45 + 0.5 * sure : 0.3 + 0.5 * sure;
                const auto add = [&](bool is, int salt, double of) {
                    if (call.proposal->tree.size() >= call.shape.nodes) return;
                    const std::int32_t token = is ? truth : wrong(salt);
                    const std::int32_t index =
                        call.proposal->add(node.index, token, static_cast<float>(of));
                    next.push_back({index, token, is});
                };
                add(first, 1, score);
                if (habits_.passes) add(second, 2, (1 - score) * 0.6);
            }
            if (!habits_.passes || std::ssize(next) > call.shape.width)
                next.resize(std::min<std::size_t>(
                    next.size(), habits_.passes ? static_cast<std::size_t>(call.shape.width) : 1));
            frontier = std::move(next);
        }
        return computed;
    }

    SimulatedClock& clock_;
    const SimulatedMachine& machine_;
    SimulatedDrafter habits_;
    std::uint64_t id_;
    std::string name_;
    std::int64_t& looked_on_;
    IndexedVector<RequestSlot, double> right_;
    draft::Followed followed_;
};

}  // namespace

double SimulatedMachine::step_time(std::int64_t tokens) const {
    std::size_t right = 1;
    while (right + 1 < step.size() && step[right].first < tokens) ++right;
    const auto& [left_tokens, left_time] = step[right - 1];
    const auto& [right_tokens, right_time] = step[right];
    const double share =
        static_cast<double>(tokens - left_tokens) / static_cast<double>(right_tokens - left_tokens);
    return left_time + share * (right_time - left_time);
}

double SimulatedMachine::prompt_token_time() const {
    const auto& [left_tokens, left_time] = step[step.size() - 2];
    const auto& [right_tokens, right_time] = step.back();
    return (right_time - left_time) / static_cast<double>(right_tokens - left_tokens);
}

schedule::Time SimulatedClock::taken(double microseconds) {
    if (machine_.noise > 0) microseconds *= 1 + machine_.noise * (2 * random_.unit() - 1);
    if (machine_.outliers > 0 && random_.chance(machine_.outliers)) microseconds *= 5;
    if (burst_left_ > 0) microseconds *= 5;
    return static_cast<schedule::Time>(microseconds * 1000);
}

void SimulatedClock::begin_step() {
    if (burst_left_ > 0)
        --burst_left_;
    else if (machine_.bursts > 0 && bursts_.chance(machine_.bursts))
        burst_left_ = machine_.burst_steps;
}

SimulatedServer::SimulatedServer(const SimulatedMachine& machine,
                                 const std::vector<SimulatedDrafter>& drafters, std::int64_t rows,
                                 std::int64_t pages, const speculate::Memory& memory)
    : machine_(machine), clock_(machine_) {
    StepperSettings settings;
    settings.memory = memory;
    settings.without = machine.without;
    settings.policy_observer = machine.observer;
    settings.schedule.max_rows = static_cast<std::int32_t>(rows);
    settings.schedule.max_model_len = 1024;
    settings.schedule.page_count = rows * pages + 1;
    settings.schedule.max_step_tokens = kStepTokens;
    settings.schedule.max_step_gather = kStepTokens;
    settings.schedule.reserve_windows = true;
    StepperParts parts{
        std::make_unique<SimulatedTarget>(clock_, machine_, settings.schedule.page_count),
        *tiny_target(Family::v2).tokenizer,
        {},
        [this] { return clock_.now; }};
    for (std::size_t i = 0; i < drafters.size(); ++i)
        parts.drafters.push_back(std::make_unique<SimulatedSource>(
            clock_, machine_, drafters[i], i + 1, looked_on_, settings.schedule.page_count));
    auto made = Stepper::create(std::move(parts), settings);
    if (!made) throw std::runtime_error(made.error().message);
    stepper_ = std::move(*made);
}

void SimulatedServer::submit(Request request, std::shared_ptr<Receiver> receiver) {
    auto checked = check_request(std::move(request), stepper_->request_limits(),
                                 *tiny_target(Family::v2).tokenizer);
    if (!checked) throw std::runtime_error(checked.error().message);
    stepper_->submit(std::move(*checked), std::move(receiver), clock_.now);
}

}  // namespace espalier::engine
