// SPDX-License-Identifier: Apache-2.0
#include "server/final_message.hpp"

#include <string_view>

namespace espalier::server {
namespace {

constexpr std::string_view kContinuedSpace = " \n\r\t";

std::string_view trimmed(std::string_view text) {
    const std::size_t begin = text.find_first_not_of(kContinuedSpace);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kContinuedSpace) + 1 - begin);
}

// The end of this text, if it is the last that the rendered chat has of its request; npos: it is
// not.
std::size_t end_of_last_content(const chat::Rendered& rendered, std::string_view text) {
    if (rendered.content.empty()) return std::string_view::npos;
    const chat::Range& last = rendered.content.back();
    std::string_view written = std::string_view(rendered.text).substr(0, last.end);
    if (!written.ends_with(text)) {
        text = trimmed(text);
        written = written.substr(0, written.find_last_not_of(kContinuedSpace) + 1);
    }
    const bool is_there = written.ends_with(text) && last.begin + text.size() <= written.size();
    return is_there ? written.size() : std::string_view::npos;
}

}  // namespace

Expected<void> check_continued(const nlohmann::json& messages) {
    if (messages.empty() || messages.back()["role"] != "assistant")
        return fail(ErrorKind::invalid, "the last message is not the assistant's");
    const nlohmann::json& last = messages.back();
    if (last.contains("tool_calls"))
        return fail(ErrorKind::unsupported, "a message with calls cannot be continued");
    if (!last["content"].is_string() ||
        trimmed(last["content"].get_ref<const std::string&>()).empty())
        return fail(ErrorKind::invalid, "the last message has no text to continue");
    return {};
}

Expected<chat::Rendered> cut_behind_final_message(chat::Rendered rendered,
                                                  const nlohmann::json& messages) {
    const std::size_t end =
        end_of_last_content(rendered, messages.back()["content"].get_ref<const std::string&>());
    if (end == std::string_view::npos)
        return fail_field(ErrorKind::unsupported, "messages",
                          "this model's template does not write the last message as it is, so it "
                          "cannot be continued");
    rendered.text.resize(end);
    rendered.content.back().end = end;
    return rendered;
}

}  // namespace espalier::server
