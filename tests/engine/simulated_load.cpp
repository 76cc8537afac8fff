// SPDX-License-Identifier: Apache-2.0
#include "engine/simulated_load.hpp"

#include <memory>
#include <utility>

#include "base/random.hpp"

namespace espalier::engine {
namespace {

class EndCounter final : public Receiver {
  public:
    explicit EndCounter(std::int64_t& ended) : ended_(ended) {}
    void receive(const Update& update) override { ended_ += update.ending ? 1 : 0; }

  private:
    std::int64_t& ended_;
};

struct StepsOfRequest final : Receiver {
    void receive(const Update& update) override { steps = update.usage.steps; }
    std::int64_t steps = 0;
};

void prescribe_tree(Request& request) {
    request.draft_depth = 4;
    request.draft_width = 3;
}

Request request_of(const SimulatedLoad& load, Random& random, bool speculate) {
    Request request;
    const bool is_long = load.long_prompt > 0 && random.chance(0.5);
    request.prompt.resize(static_cast<std::size_t>(is_long ? load.long_prompt : load.prompt));
    Random repeated(
        static_cast<std::uint64_t>(load.prompts > 0 ? random.between(1, load.prompts) : 0));
    Random& source = load.prompts > 0 ? repeated : random;
    for (std::int32_t& token : request.prompt)
        token = source.between(2, SimulatedServer::kVocabulary - 1);
    const auto length = static_cast<std::int32_t>(load.output);
    request.output.max_tokens =
        load.spread_lengths ? random.between(length / 4, 7 * length / 4) : length;
    request.output.ignore_eos = true;
    request.sampling.temperature = load.temperature;
    request.logprobs = false;
    request.speculate = speculate;
    request.draft_depth = load.depth;
    if (load.chats > 0 && random.chance(load.chats))
        request.prompt[0] = request.prompt[1] = SimulatedServer::kChat;
    if (load.prescribed > 0 && random.chance(load.prescribed)) prescribe_tree(request);
    return request;
}

}  // namespace

SimulatedResult simulate(const SimulatedMachine& machine,
                         const std::vector<SimulatedDrafter>& drafters, const SimulatedLoad& load) {
    SimulatedServer server(machine, drafters, load.clients, load.pages, load.known);
    std::int64_t ended = 0, submitted = 0, waiting = 0;
    Random random(static_cast<std::uint64_t>(load.clients) + 1000 * load.seed);
    const auto receiver = std::make_shared<EndCounter>(ended);
    const auto submit = [&] {
        server.submit(request_of(load, random, !drafters.empty()), receiver);
        ++submitted;
    };
    for (std::int64_t i = 0; i < load.clients; ++i) submit();
    SimulatedResult result;
    schedule::Time half_time = 0;
    std::int64_t half_tokens = 0;
    std::int64_t tokens = 0, steps = 0, rows = 0;
    while (tokens < load.steps * load.clients) {
        const StepReport report = server.step();
        waiting += std::exchange(ended, 0);
        for (; waiting > 0 && (!load.in_batches || server.idle()); --waiting) submit();
        tokens += report.committed;
        if (half_time == 0 && 2 * tokens >= load.steps * load.clients) {
            half_time = server.now();
            half_tokens = tokens;
        }
        rows += report.tokens.roots;
        ++steps;
        result.accepted += static_cast<double>(report.accepted);
        result.drafts += static_cast<double>(report.tokens.drafts);
        result.levels += static_cast<double>(report.draft_levels);
        const std::int64_t prompts =
            report.tokens.prompt_absorbed + report.tokens.prompt_decompressed;
        result.with_prompts += prompts > 0;
        result.prompt_tokens += static_cast<double>(prompts);
    }
    const auto step_count = static_cast<double>(steps);
    result.tokens_per_second =
        static_cast<double>(tokens) / (static_cast<double>(server.now()) * 1e-9);
    result.later = static_cast<double>(tokens - half_tokens) /
                   (static_cast<double>(server.now() - half_time) * 1e-9);
    result.accepted /= static_cast<double>(rows);
    result.drafts /= static_cast<double>(rows);
    result.levels /= step_count;
    result.with_prompts /= step_count;
    result.prompt_tokens /= static_cast<double>(submitted);
    result.looked_on = static_cast<double>(server.looked_on()) / step_count;
    return result;
}

std::vector<std::int64_t> simulate(const SimulatedMachine& machine,
                                   const std::vector<SimulatedDrafter>& drafters,
                                   const SimulatedChats& chats) {
    SimulatedServer server(machine, drafters, 1, 24);
    Random random(machine.seed);
    const SimulatedLoad chat{.prompt = 30, .output = chats.chat_tokens};
    const SimulatedLoad repeating{.prompt = 60, .output = chats.tokens};
    std::vector<std::int64_t> steps;
    for (std::int64_t i = 0; i < chats.chats + chats.requests; ++i) {
        const bool chats_now = i < chats.chats;
        Request request = request_of(chats_now ? chat : repeating, random, true);
        if (chats_now) {
            request.prompt[0] = request.prompt[1] = SimulatedServer::kChat;
            if (random.chance(chats.prescribed)) prescribe_tree(request);
        }
        const auto receiver = std::make_shared<StepsOfRequest>();
        server.submit(std::move(request), receiver);
        while (!server.idle()) server.step();
        if (!chats_now) steps.push_back(receiver->steps);
    }
    return steps;
}

double simulate_starts(const SimulatedMachine& machine,
                       const std::vector<SimulatedDrafter>& drafters, std::int64_t tokens,
                       std::int32_t depth, const speculate::Memory& known,
                       speculate::Memory* learnt) {
    double seconds = 0;
    for (std::uint64_t start = 0; start < 8; ++start) {
        SimulatedMachine one = machine;
        one.seed = machine.seed + start;
        SimulatedServer server(one, drafters, 1, 24, known);
        Random random(one.seed);
        const SimulatedLoad load{.prompt = 30, .output = tokens, .depth = depth};
        const auto receiver = std::make_shared<StepsOfRequest>();
        server.submit(request_of(load, random, !drafters.empty()), receiver);
        while (!server.idle()) server.step();
        seconds += static_cast<double>(server.now()) * 1e-9;
        if (start == 0 && learnt != nullptr) *learnt = server.speculation().memory();
    }
    return seconds;
}

}  // namespace espalier::engine
