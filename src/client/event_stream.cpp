// SPDX-License-Identifier: Apache-2.0
#include "client/event_stream.hpp"

#include <fmt/format.h>

#include <utility>

namespace espalier::client {

void EventStream::end_line(std::vector<std::string>& events) {
    const std::string line = std::exchange(line_, {});
    if (line.empty()) {
        if (std::exchange(has_data_, false)) events.push_back(std::exchange(data_, {}));
        return;
    }
    constexpr std::string_view kData = "data";
    const std::string_view view = line;
    if (!view.starts_with(kData)) return;
    std::string_view value = view.substr(kData.size());
    if (!value.empty() && value.front() != ':') return;  // another field, whose name begins alike
    if (!value.empty()) value.remove_prefix(1);
    if (value.starts_with(' ')) value.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += value;
    has_data_ = true;
}

std::optional<Failure> EventStream::push(std::string_view bytes, std::vector<std::string>& events) {
    while (!bytes.empty()) {
        if (std::exchange(after_return_, false) && bytes.front() == '\n') {
            bytes.remove_prefix(1);
            continue;
        }
        const std::size_t end = bytes.find_first_of("\r\n");
        line_ += bytes.substr(0, end);
        if (line_.size() + data_.size() > kMaxEventBytes)
            return Failure{FailureKind::events,
                           fmt::format("an event has more than {} bytes", kMaxEventBytes)};
        if (end == std::string_view::npos) return std::nullopt;
        after_return_ = bytes[end] == '\r';
        bytes.remove_prefix(end + 1);
        end_line(events);
    }
    return std::nullopt;
}

}  // namespace espalier::client
