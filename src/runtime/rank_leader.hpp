// SPDX-License-Identifier: Apache-2.0
// The first rank's side of setting up a model and engines on the others. They answer what went
// wrong with them; a rank that is gone becomes an error here, too.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/error.hpp"
#include "engine/rank_channel.hpp"
#include "runtime/rank_messages.hpp"
#include "runtime/sizes.hpp"

namespace espalier::runtime {

// A model that the other ranks have open as well; they close it when this ends.
class OpenOnRanks {
  public:
    explicit OpenOnRanks(engine::RankChannel& channel) : channel_(channel) {}
    ~OpenOnRanks() { channel_.send_end(engine::Command::close_model); }
    OpenOnRanks(const OpenOnRanks&) = delete;
    OpenOnRanks& operator=(const OpenOnRanks&) = delete;

  private:
    engine::RankChannel& channel_;
};

// The model that the others are to open, of options with a channel.
RankModel rank_model(const checkpoint::Checkpoint& checkpoint, const LoadOptions& options);

// Asks every rank what it has, and leaves in `facts` the numbers of the rank with the least room
// for pages: ranks of one machine share its memory.
Expected<void> measure_ranks(engine::RankChannel& channel, const RankModel& model,
                             SizeFacts& facts);

// Lets the others open the model, while this rank does the same.
void open_on_ranks(engine::RankChannel& channel, const RankModel& model);
// Waits for them. An error names a rank that failed, or that is not as this one.
Expected<void> check_opened(engine::RankChannel& channel, const RankFacts& mine);

// f(), with a rank that is gone as an error.
template <typename F>
auto without_loss(F&& f) -> decltype(f()) {
    try {
        return f();
    } catch (const parallel::RankLost& lost) {
        return fail(ErrorKind::io, "{}", lost.what());
    }
}

}  // namespace espalier::runtime
