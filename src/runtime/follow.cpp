// SPDX-License-Identifier: Apache-2.0
#include "runtime/follow.hpp"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "engine/follower.hpp"
#include "engine/rank_channel.hpp"
#include "runtime/drafters.hpp"
#include "runtime/rank_messages.hpp"
#include "runtime/sizes.hpp"

namespace espalier::runtime {
namespace {

using engine::Command;
using Answer = std::vector<std::byte>;

class FollowedModel {
  public:
    explicit FollowedModel(parallel::Ranks& ranks) : ranks_(ranks) {}

    Expected<void> run(Command command, FlatReader& reader) {
        switch (command) {
            case Command::measure:
                return answered(measure(reader));
            case Command::open:
                return answered(open(reader));
            case Command::target:
                return answered(make_target(reader));
            case Command::close_target:
                follower_.reset();
                return reader.finish("close_target");
            case Command::close_model:
                follower_.reset();
                loaded_.reset();
                return reader.finish("close_model");
            default:
                break;
        }
        if (follower_ == nullptr) return fail(ErrorKind::invalid, "there is no engine");
        return follower_->run(command, reader);
    }

  private:
    Expected<void> answered(const Expected<Answer>& result) {
        engine::answer(ranks_, result);
        return {};
    }

    template <typename T>
    static Answer written(const T& value) {
        Answer answer;
        FlatWriter writer(answer);
        write(writer, value);
        return answer;
    }

    static Expected<std::shared_ptr<const checkpoint::Checkpoint>> open_files(
        const RankModel& model) {
        ESPALIER_ASSIGN_OR_RETURN(checkpoint::Checkpoint opened,
                                  checkpoint::Checkpoint::open(model.path));
        return std::make_shared<const checkpoint::Checkpoint>(std::move(opened));
    }

    LoadOptions here(const RankModel& model) const {
        LoadOptions options = model.load_options();
        options.ranks = &ranks_;
        return options;
    }

    Expected<Answer> measure(FlatReader& reader) {
        ESPALIER_ASSIGN_OR_RETURN(const RankModel model, read_rank_model(reader));
        ModelFiles files;
        ESPALIER_ASSIGN_OR_RETURN(files.checkpoint, open_files(model));
        ESPALIER_ASSIGN_OR_RETURN(const SizeFacts facts,
                                  size_facts(files, DrafterChoice{.mtp = model.mtp}, here(model)));
        return written(RankNumbers{.machine = machine_identity(),
                                   .memory_bytes = facts.memory_bytes,
                                   .weight_bytes = facts.weight_bytes,
                                   .page_bytes = facts.page_bytes});
    }

    Expected<Answer> open(FlatReader& reader) {
        ESPALIER_ASSIGN_OR_RETURN(const RankModel model, read_rank_model(reader));
        if (loaded_) return fail(ErrorKind::invalid, "a model is open already");
        ESPALIER_ASSIGN_OR_RETURN(const auto files, open_files(model));
        ESPALIER_ASSIGN_OR_RETURN(LoadedModel loaded,
                                  LoadedModel::load(files, model.sizes, here(model)));
        ESPALIER_ASSIGN_OR_RETURN(const RankFacts facts, rank_facts(loaded, model.sizes));
        loaded_.emplace(std::move(loaded));
        return written(facts);
    }

    Expected<Answer> make_target(FlatReader& reader) {
        ESPALIER_ASSIGN_OR_RETURN(const RankEngine engine, read_rank_engine(reader));
        if (!loaded_) return fail(ErrorKind::invalid, "no model is open");
        if (follower_) return fail(ErrorKind::invalid, "there is an engine already");
        if (engine.mtp && loaded_->model->weights().mtp.empty())
            return fail(ErrorKind::invalid, "the model was opened without its MTP layer");
        if (engine.sizes.page_count < 1)
            return fail(ErrorKind::invalid, "{} pages", engine.sizes.page_count);
        const DrafterChoice drafters{.mtp = engine.mtp};
        const draft::DraftSet models = draft_set(*loaded_, drafters);
        engine::Follower::Parts parts{*loaded_->model, {}, {}, {}};
        ESPALIER_ASSIGN_OR_RETURN(
            cache::KvStorage storage,
            cache::KvStorage::create(*loaded_->device, models.layout(), engine.sizes.page_count));
        parts.storage = std::make_unique<cache::KvStorage>(std::move(storage));
        ESPALIER_ASSIGN_OR_RETURN(model::TapMemory taps,
                                  models.make_taps(engine.sizes.max_step_tokens));
        parts.taps = std::make_unique<model::TapMemory>(std::move(taps));
        if (engine.mtp) {
            ESPALIER_ASSIGN_OR_RETURN(
                parts.drafts,
                models.make_passes(draft_machine(*loaded_, {}), draft_limits(engine.sizes),
                                   *parts.storage, parts.taps->taps()));
        }
        follower_ = std::make_unique<engine::Follower>(std::move(parts));
        return Answer{};
    }

    parallel::Ranks& ranks_;
    std::optional<LoadedModel> loaded_;
    std::unique_ptr<engine::Follower> follower_;
};

}  // namespace

Expected<void> follow(parallel::Ranks& ranks, std::chrono::seconds timeout) {
    FollowedModel model(ranks);
    std::vector<std::byte> buffer;
    for (std::uint64_t serial = 1;; ++serial) {
        ranks.set_timeout(std::chrono::seconds(0));
        ranks.broadcast(buffer, 0, engine::kMostCommandBytes);
        FlatReader reader(buffer);
        auto command = engine::read_command(reader, serial);
        if (command && !engine::is_setup(*command)) ranks.set_timeout(timeout);
        Expected<void> done;
        if (!command)
            done = tl::unexpected<Error>(command.error());
        else if (*command == Command::stop)
            return reader.finish("stop");
        else
            done = for_what(model.run(*command, reader), engine::name_of(*command));
        if (done) continue;
        ranks.leave(done.error().message);
        return done;
    }
}

}  // namespace espalier::runtime
