// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine_parts.hpp"

#include <utility>

#include "base/for_what.hpp"
#include "engine/model_target.hpp"
#include "engine/ranked_target.hpp"
#include "runtime/rank_leader.hpp"

namespace espalier::runtime {
namespace {

using engine::Command;

// The other ranks' part of one engine, from the first word of it until a target closes it.
class PartsOnRanks {
  public:
    PartsOnRanks(engine::RankChannel& channel, const RankEngine& engine) : channel_(channel) {
        channel_.send(Command::target, [&](FlatWriter& writer) { write(writer, engine); });
    }
    ~PartsOnRanks() {
        if (!answered_) {
            try {
                static_cast<void>(channel_.answers());
            } catch (const parallel::RankLost&) {
            }
        }
        if (!kept_) channel_.send_end(Command::close_target);
    }
    PartsOnRanks(const PartsOnRanks&) = delete;
    PartsOnRanks& operator=(const PartsOnRanks&) = delete;

    Expected<void> wait() {
        answered_ = true;
        ESPALIER_RETURN_IF_ERROR(channel_.answers());
        return {};
    }
    std::unique_ptr<engine::Target> keep(std::unique_ptr<engine::Target> own) {
        kept_ = true;
        return std::make_unique<engine::RankedTarget>(channel_, std::move(own));
    }

  private:
    engine::RankChannel& channel_;
    bool answered_ = false, kept_ = false;
};

Expected<EngineParts> make_here(LoadedModel& loaded, const DrafterChoice& drafters,
                                const EngineSizes& sizes, const batch::CaptureOptions& capture,
                                const text::Tokenizer& tokenizer, draft::PassEcho* echo) {
    const draft::DraftSet models = draft_set(loaded, drafters);
    EngineParts parts;
    ESPALIER_ASSIGN_OR_RETURN(
        auto target,
        engine::ModelTarget::create(*loaded.model, models.layout(), sizes.page_count, capture));
    ESPALIER_ASSIGN_OR_RETURN(
        model::TapMemory taps,
        for_what(models.make_taps(sizes.max_step_tokens), "hidden states for draft models"));
    parts.taps = std::make_shared<model::TapMemory>(std::move(taps));
    ESPALIER_ASSIGN_OR_RETURN(parts.drafters,
                              make_drafters(loaded, drafters, sizes, target->storage(),
                                            parts.taps->taps(), capture, tokenizer, echo));
    parts.target = std::move(target);
    return parts;
}

}  // namespace

Expected<EngineParts> make_engine_parts(LoadedModel& loaded, const DrafterChoice& drafters,
                                        const EngineSizes& sizes,
                                        const batch::CaptureOptions& capture,
                                        const text::Tokenizer& tokenizer) {
    if (loaded.channel == nullptr)
        return make_here(loaded, drafters, sizes, capture, tokenizer, nullptr);
    return without_loss([&]() -> Expected<EngineParts> {
        engine::RankChannel& channel = *loaded.channel;
        const engine::RankChannel::Unhurried unhurried(channel);
        PartsOnRanks others(channel, {.sizes = sizes, .mtp = drafters.mtp});
        std::shared_ptr<engine::RankedPasses> passes;
        if (drafters.mtp)
            passes = std::make_shared<engine::RankedPasses>(channel, draft_limits(sizes));
        ESPALIER_ASSIGN_OR_RETURN(EngineParts parts, make_here(loaded, drafters, sizes, capture,
                                                               tokenizer, passes.get()));
        ESPALIER_RETURN_IF_ERROR(others.wait());
        parts.target = others.keep(std::move(parts.target));
        parts.ranks = std::move(passes);
        return parts;
    });
}

}  // namespace espalier::runtime
