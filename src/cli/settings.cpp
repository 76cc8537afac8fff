// SPDX-License-Identifier: Apache-2.0
#include "cli/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/nearest.hpp"
#include "cli/settings_file.hpp"

namespace espalier::cli {
namespace {

constexpr std::string_view kPrefix = "ESPALIER_";
// Read elsewhere, and no flags.
constexpr std::string_view kOtherVariables[] = {"ESPALIER_CPU_VARIANT"};
// Flags that settings are about, of the command line alone.
constexpr std::string_view kNoSettings[] = {"config", "explain", "print-flags", "print-metrics"};

bool is_setting(const std::string& key) {
    return !key.empty() && std::ranges::find(kNoSettings, key) == std::end(kNoSettings);
}

std::vector<CLI::Option*> settable(CLI::App& command) {
    return command.get_options(
        [](const CLI::Option* option) { return is_setting(key_of(*option)); });
}

CLI::Option* find(CLI::App& command, const std::string& key) {
    for (CLI::Option* option : settable(command))
        if (key_of(*option) == key) return option;
    return nullptr;
}

std::vector<std::string> keys_of(CLI::App& command) {
    std::vector<std::string> keys;
    for (const CLI::Option* option : settable(command)) keys.push_back(key_of(*option));
    return keys;
}

bool takes_several(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

Expected<void> set(CLI::Option& option, const std::vector<std::string>& values,
                   const std::string& from) {
    try {
        for (const std::string& value : values)
            option.add_result(option.get_expected_max() == 0
                                  ? option.get_flag_value("--" + key_of(option), value)
                                  : value);
        option.run_callback();
    } catch (const CLI::Error& error) {
        return fail(ErrorKind::invalid, "{}: {}", from, error.what());
    }
    return {};
}

std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> parts;
    std::stringstream in(text);
    for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
    return parts;
}

Expected<void> apply_environment(CLI::App& command, Sources& sources,
                                 std::vector<std::string>& ignored) {
    for (CLI::Option* option : settable(command)) {
        const std::string key = key_of(*option);
        const std::string name = environment_name(key);
        const char* value = std::getenv(name.c_str());
        if (value == nullptr || *value == '\0' || sources[key] != "default") continue;
        // A Kubernetes service called espalier has ESPALIER_PORT=tcp://… set in every pod.
        if (std::string_view(value).starts_with("tcp://")) {
            ignored.push_back(name + " is a Kubernetes service's address, no setting of serve");
            continue;
        }
        ESPALIER_RETURN_IF_ERROR(
            set(*option, takes_several(*option) ? split(value) : std::vector<std::string>{value},
                name));
        sources[key] = "environment";
    }
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view whole = *entry;
        const std::string name(whole.substr(0, whole.find('=')));
        if (!name.starts_with(kPrefix) ||
            std::ranges::find(kOtherVariables, name) != std::end(kOtherVariables))
            continue;
        std::string key = name.substr(kPrefix.size());
        std::ranges::transform(key, key.begin(), [](unsigned char c) {
            return c == '_' ? '-' : static_cast<char>(std::tolower(c));
        });
        if (find(command, key) == nullptr) ignored.push_back(name + " is no flag of serve");
    }
    return {};
}

Expected<void> apply_file(CLI::App& command, const std::string& config, Sources& sources) {
    std::ifstream in(config);
    if (!in) return fail_field(ErrorKind::not_found, "config", "{}: cannot be read", config);
    std::stringstream text;
    text << in.rdbuf();
    ESPALIER_ASSIGN_OR_RETURN(const std::vector<Setting> settings,
                              parse_settings(text.str(), config));
    for (const Setting& setting : settings) {
        CLI::Option* option = find(command, setting.key);
        if (option == nullptr)
            return fail(ErrorKind::invalid, "{}:{}: there is no {}; did you mean {}?", config,
                        setting.line, setting.key, nearest(setting.key, keys_of(command)));
        if (setting.values.size() != 1 && !takes_several(*option))
            return fail(ErrorKind::invalid, "{}:{}: {} takes one value, not {}", config,
                        setting.line, setting.key, setting.values.size());
        if (sources[setting.key] != "default") continue;
        ESPALIER_RETURN_IF_ERROR(
            set(*option, setting.values, fmt::format("{}:{}", config, setting.line)));
        sources[setting.key] = "file";
    }
    return {};
}

std::string value_of(const CLI::Option& option) {
    if (option.count() > 0) {
        if (key_of(option) == "api-key") return "(hidden)";
        return fmt::format("{}", fmt::join(option.results(), ", "));
    }
    if (option.get_expected_max() == 0) return "false";
    const std::string value = option.get_default_str();
    return value.empty() || value == "[]" ? "–" : value;
}

}  // namespace

std::string key_of(const CLI::Option& option) {
    const std::vector<std::string>& names = option.get_lnames();
    if (names.empty() || names.front() == "help") return {};
    return names.front();
}

std::string environment_name(const std::string& key) {
    std::string name = std::string(kPrefix) + key;
    std::ranges::transform(name, name.begin(), [](unsigned char c) {
        return c == '-' ? '_' : static_cast<char>(std::toupper(c));
    });
    return name;
}

Expected<Sources> apply_settings(CLI::App& command, const std::string& config,
                                 std::vector<std::string>& ignored) {
    Sources sources;
    for (const CLI::Option* option : settable(command))
        sources[key_of(*option)] = option->count() > 0 ? "command line" : "default";
    ESPALIER_RETURN_IF_ERROR(apply_environment(command, sources, ignored));
    if (!config.empty()) ESPALIER_RETURN_IF_ERROR(apply_file(command, config, sources));
    return sources;
}

std::string flags_page(const CLI::App& command) {
    std::string page =
        "# The server's flags\n\n"
        "`espalier serve` takes each flag on the command line, from the environment "
        "(`ESPALIER_MAX_MODEL_LEN` for `--max-model-len`; lists as `a,b`),\nand from the file of "
        "`--config` (`max-model-len = 4096`; lists as `[\"a\", \"b\"]`); the first of these "
        "wins. Only the last four are flags\nof the command line alone. `serve --explain` prints "
        "what was chosen and where each value came from.\n`espalier serve --print-flags` writes "
        "this page, and a test holds it to that.\n\n"
        "| flag=default | meaning |\n|---|---|\n";
    for (const CLI::Option* option : command.get_options()) {
        const std::string key = key_of(*option);
        if (key.empty()) continue;
        std::string help = option->get_description();
        for (std::size_t at = 0; (at = help.find('|', at)) != std::string::npos; at += 2)
            help.replace(at, 1, "\\|");
        const std::string value = option->get_default_str();
        page += fmt::format("| `--{}{}` | {} |\n", key,
                            value.empty() || value == "[]" ? "" : "=" + value, help);
    }
    return page;
}

std::string explain_settings(const CLI::App& command, const Sources& sources) {
    std::string made;
    for (const CLI::Option* option : command.get_options()) {
        const auto source = sources.find(key_of(*option));
        if (source == sources.end()) continue;
        made += fmt::format("{:<22} {:<26} {}\n", source->first, value_of(*option), source->second);
    }
    return made;
}

}  // namespace espalier::cli
