// SPDX-License-Identifier: Apache-2.0
#include "engine/rank_channel.hpp"

#include <exception>
#include <optional>

namespace espalier::engine {

void RankChannel::send_end(Command command) noexcept {
    try {
        send(command);
    } catch (const std::exception&) {
    }
}

Expected<std::vector<std::vector<std::byte>>> RankChannel::answers() {
    const Unhurried unhurried(*this);
    const auto received = ranks_.gather({}, 0, kMostAnswerBytes);
    std::vector<std::vector<std::byte>> answers(received.size());
    std::optional<Error> refused;
    for (int rank = 1; rank < ranks_.count(); ++rank) {
        const auto place = static_cast<std::size_t>(rank);
        FlatReader reader(received[place]);
        const bool done = reader.flag();
        const std::string reason = reader.text();
        reader.array(answers[place]);
        const Expected<void> whole = reader.finish("an answer");
        if ((done && whole) || refused) continue;
        refused = Error{ErrorKind::invalid, fmt::format("{}: {}", ranks_.name(rank),
                                                        whole ? reason : whole.error().message)};
    }
    if (refused) return tl::unexpected<Error>(std::move(*refused));
    return answers;
}

void answer(parallel::Ranks& ranks, const Expected<std::vector<std::byte>>& result) {
    std::vector<std::byte> buffer;
    FlatWriter writer(buffer);
    writer.number(static_cast<std::uint8_t>(result ? 1 : 0));
    writer.text(result ? std::string_view() : std::string_view(result.error().message));
    writer.array(result ? std::span<const std::byte>(*result) : std::span<const std::byte>());
    ranks.gather(buffer, 0, kMostAnswerBytes);
}

}  // namespace espalier::engine
