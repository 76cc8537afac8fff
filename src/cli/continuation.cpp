// SPDX-License-Identifier: Apache-2.0
#include "cli/continuation.hpp"

#include <chrono>

namespace espalier::cli {

Expected<Continuation> continue_request(engine::Engine& engine, const engine::Request& request,
                                        const std::function<void(const accept::Emission&)>& watch) {
    using Clock = std::chrono::steady_clock;
    ESPALIER_ASSIGN_OR_RETURN(engine::Stream stream, engine.submit(request));
    engine::Updates updates;
    Continuation made;
    Clock::time_point first = Clock::now();
    while (stream.next(updates)) {
        const engine::ChoiceUpdate& update = updates.choices[0];
        if (made.tokens.empty()) first = Clock::now();
        watch(update.emission);
        for (const accept::CommittedToken& token : update.emission.tokens)
            made.tokens.push_back(token.token);
        made.usage = update.usage;
        if (update.ended && update.finish.reason == accept::FinishReason::interrupted)
            return fail(ErrorKind::io, "after {} tokens: {}", made.tokens.size(), update.message);
    }
    made.seconds = std::chrono::duration<double>(Clock::now() - first).count();
    return made;
}

}  // namespace espalier::cli
