// SPDX-License-Identifier: Apache-2.0
#include "runtime/rank_leader.hpp"

#include <filesystem>
#include <limits>
#include <map>
#include <vector>

namespace espalier::runtime {
namespace {

using engine::Command;

// Pages that a rank has room for, about.
double room_of(const RankNumbers& numbers) {
    return (0.9 * static_cast<double>(numbers.memory_bytes) -
            static_cast<double>(numbers.weight_bytes)) /
           static_cast<double>(numbers.page_bytes);
}

}  // namespace

RankModel rank_model(const checkpoint::Checkpoint& checkpoint, const LoadOptions& options) {
    return {.path = std::filesystem::absolute(checkpoint.directory()).string(),
            .threads = options.threads,
            .kv_format = options.kv_format,
            .rounding = options.rounding,
            .head_rounding = options.head_rounding,
            .activations = options.activations,
            .mmap_experts = options.mmap_experts,
            .mtp = options.mtp};
}

Expected<void> measure_ranks(engine::RankChannel& channel, const RankModel& model,
                             SizeFacts& facts) {
    channel.send(Command::measure, [&](FlatWriter& writer) { write(writer, model); });
    ESPALIER_ASSIGN_OR_RETURN(const auto answers, channel.answers());
    std::vector<RankNumbers> all = {{.machine = machine_identity(),
                                     .memory_bytes = facts.memory_bytes,
                                     .weight_bytes = facts.weight_bytes,
                                     .page_bytes = facts.page_bytes}};
    for (std::size_t rank = 1; rank < answers.size(); ++rank) {
        FlatReader reader(answers[rank]);
        ESPALIER_ASSIGN_OR_RETURN(RankNumbers numbers, read_rank_numbers(reader));
        all.push_back(std::move(numbers));
    }
    std::map<std::string, std::int64_t> ranks_of;
    for (const RankNumbers& numbers : all) ++ranks_of[numbers.machine];
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
        RankNumbers& numbers = all[rank];
        numbers.memory_bytes /= ranks_of[numbers.machine];
        if (room_of(numbers) >= least) continue;
        least = room_of(numbers);
        facts.memory_bytes = numbers.memory_bytes;
        facts.weight_bytes = numbers.weight_bytes;
        facts.page_bytes = numbers.page_bytes;
        facts.rank = channel.ranks().name(static_cast<int>(rank));
    }
    return {};
}

void open_on_ranks(engine::RankChannel& channel, const RankModel& model) {
    channel.send(Command::open, [&](FlatWriter& writer) { write(writer, model); });
}

Expected<void> check_opened(engine::RankChannel& channel, const RankFacts& mine) {
    ESPALIER_ASSIGN_OR_RETURN(const auto answers, channel.answers());
    for (std::size_t rank = 1; rank < answers.size(); ++rank) {
        FlatReader reader(answers[rank]);
        const std::string name = channel.ranks().name(static_cast<int>(rank));
        ESPALIER_ASSIGN_OR_RETURN(const RankFacts facts, read_rank_facts(reader));
        ESPALIER_RETURN_IF_ERROR(check_same(mine, facts, name));
    }
    return {};
}

}  // namespace espalier::runtime
