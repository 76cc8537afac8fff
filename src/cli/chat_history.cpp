// SPDX-License-Identifier: Apache-2.0
#include "cli/chat_history.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "base/json.hpp"
#include "base/mapped_file.hpp"

namespace espalier::cli {
namespace {

namespace fs = std::filesystem;

std::string encoded(const std::string& line) {
    return nlohmann::json(line).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
           "\n";
}

Expected<void> write_lines(const fs::path& path, const std::string& bytes, int mode) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | mode, 0600);
    const bool written = file >= 0 && ::write(file, bytes.data(), bytes.size()) ==
                                          static_cast<ssize_t>(bytes.size());
    const int error = errno;
    if (file >= 0) ::close(file);
    if (!written) return fail(ErrorKind::io, "{}: {}", path.string(), std::strerror(error));
    return {};
}

}  // namespace

fs::path ChatHistory::default_path() {
    const auto variable = [](const char* name) {
        const char* value = std::getenv(name);
        return fs::path(value == nullptr ? "" : value);
    };
    const fs::path state = variable("XDG_STATE_HOME"), home = variable("HOME");
    if (state.is_absolute()) return state / "espalier" / "chat_history";
    return home.is_absolute() ? home / ".local" / "state" / "espalier" / "chat_history"
                              : fs::path();
}

Expected<ChatHistory> ChatHistory::open(const fs::path& path) {
    ChatHistory history;
    history.path_ = path;
    if (path.empty()) return history;
    ESPALIER_ASSIGN_OR_RETURN(const auto file, read_optional_text_file(path, kMaxBytes));
    std::string_view rest = file ? std::string_view(*file) : std::string_view();
    while (!rest.empty()) {
        const std::size_t end = std::min(rest.find('\n'), rest.size());
        // A line that another program spoilt is left out.
        if (const auto line = parse_json(rest.substr(0, end), "history"); line && line->is_string())
            history.lines_.push_back(line->get<std::string>());
        rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    auto& lines = history.lines_;
    if (lines.size() <= kMaxLines) return history;
    lines.erase(lines.begin(), lines.end() - kMaxLines);
    std::string kept;
    for (const std::string& line : lines) kept += encoded(line);
    ESPALIER_RETURN_IF_ERROR(write_lines(path, kept, O_TRUNC));
    return history;
}

Expected<void> ChatHistory::add(const std::string& line) {
    if (!lines_.empty() && lines_.back() == line) return {};
    lines_.push_back(line);
    if (path_.empty()) return {};
    std::error_code ignored;  // opening the file says it better
    if (path_.has_parent_path()) fs::create_directories(path_.parent_path(), ignored);
    return write_lines(path_, encoded(line), O_APPEND);
}

}  // namespace espalier::cli
