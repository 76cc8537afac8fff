// SPDX-License-Identifier: Apache-2.0
#include "cli/flag_names.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

namespace espalier::cli {
namespace {

template <typename T>
bool is_decimal(std::string_view text) {
    T value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
    return digits == "0" || !digits.starts_with('0');
}

template <typename T>
std::string refusal(const std::string& text) {
    if (is_decimal<T>(text)) return {};
    return fmt::format("{} is not a decimal integer within {}…{}", text,
                       std::numeric_limits<T>::min(), std::numeric_limits<T>::max());
}

// Fields that go by another name here.
constexpr std::pair<std::string_view, const char*> kOtherNames[] = {
    {"top_logprobs", "--logprobs"},
    {"stop_token_ids", "--stop-token-id"},
};

}  // namespace

void require_decimal_integers(CLI::App& app) {
    for (CLI::Option* option : app.get_options()) {
        // The names that CLI11 gives to types, with those of other checks behind a colon. An empty
        // description keeps --help as it is.
        const std::string type = option->get_type_name() + ":";
        if (type.starts_with("INT:"))
            option->check(CLI::Validator(refusal<std::int64_t>, ""));
        else if (type.starts_with("UINT:"))
            option->check(CLI::Validator(refusal<std::uint64_t>, ""));
    }
    for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; }))
        require_decimal_integers(*command);
}

Error named_by_flag(const CLI::App& command, Error error) {
    const std::size_t bracket = error.field.find('[');
    const std::string field = error.field.substr(0, bracket);
    const std::string index =
        bracket == std::string::npos ? std::string() : error.field.substr(bracket);
    std::string flag = "--" + field;
    std::ranges::replace(flag, '_', '-');
    for (const auto& [name, other] : kOtherNames)
        if (name == field) flag = other;
    if (command.get_option_no_throw(flag) == nullptr) return error;
    return with_field(std::move(error), flag + index);
}

CLI::Validator not_empty() {
    return CLI::Validator(
        [](const std::string& text) { return text.empty() ? "is empty" : std::string(); }, "",
        "not_empty");
}

}  // namespace espalier::cli
