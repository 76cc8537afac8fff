// SPDX-License-Identifier: Apache-2.0
#include "runtime/speculation_memory.hpp"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>
#include <utility>

#include "base/content_hash.hpp"
#include "base/json.hpp"
#include "base/mapped_file.hpp"
#include "base/user_cache.hpp"
#include "checkpoint/safetensors_writer.hpp"

namespace espalier::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Raised whenever a number changes its meaning.
constexpr int kMemoryFormat = 1;
constexpr const char* kSuffix = ".json";

std::string file_name(const SpeculationMemory::Key& key) {
    ContentHash hash;
    for (const IdentityField& field : listed(key.identity)) {
        hash.add(field.name);
        hash.add(field.value);
    }
    for (const std::string& part : {key.model, key.draft, key.machine}) hash.add(part);
    for (const std::string& drafter : key.drafters) hash.add(drafter);
    hash.word(static_cast<std::uint64_t>(key.threads));
    return hash.text() + kSuffix;
}

std::optional<speculate::Numbers> numbers_of(const json& object, const char* name) {
    const auto found = object.find(name);
    if (found == object.end() || !found->is_array()) return std::nullopt;
    speculate::Numbers numbers;
    for (const json& one : *found) {
        if (!one.is_number()) return std::nullopt;
        numbers.push_back(one.get<double>());
    }
    return numbers;
}

std::optional<speculate::Memory> memory_of(const json& file) {
    if (!file.is_object() || !file.contains("format") || file["format"] != kMemoryFormat ||
        !file.contains("drafters") || !file["drafters"].is_object())
        return std::nullopt;
    speculate::Memory memory;
    for (const auto& [name, one] : file["drafters"].items()) {
        if (!one.is_object()) return std::nullopt;
        auto acceptance = numbers_of(one, "acceptance"), calls = numbers_of(one, "calls");
        if (!acceptance || !calls) return std::nullopt;
        memory.drafters.push_back({name, std::move(*acceptance), std::move(*calls)});
    }
    auto step_time = numbers_of(file, "step_time"), rates = numbers_of(file, "rates");
    if (!step_time || !rates) return std::nullopt;
    memory.step_time = std::move(*step_time);
    memory.rates = std::move(*rates);
    return memory;
}

}  // namespace

SpeculationMemory::SpeculationMemory(fs::path directory, const Key& key)
    : directory_(std::move(directory)), file_(directory_ / file_name(key)) {}

fs::path SpeculationMemory::default_directory() { return user_cache("speculation"); }

Expected<speculate::Memory> SpeculationMemory::load() const {
    ESPALIER_ASSIGN_OR_RETURN(const auto text, read_optional_text_file(file_, kMostBytes));
    if (!text) return speculate::Memory{};
    ESPALIER_ASSIGN_OR_RETURN(const json parsed, parse_json(*text, file_.string(), {8}));
    auto memory = memory_of(parsed);
    if (!memory)
        return fail(ErrorKind::invalid, "{}: not what speculation keeps in format {}",
                    file_.string(), kMemoryFormat);
    return std::move(*memory);
}

Expected<void> SpeculationMemory::save(const speculate::Memory& memory) const {
    json file = {{"format", kMemoryFormat},
                 {"drafters", json::object()},
                 {"step_time", memory.step_time},
                 {"rates", memory.rates}};
    for (const speculate::DrafterMemory& drafter : memory.drafters)
        file["drafters"][drafter.name] = {{"acceptance", drafter.acceptance},
                                          {"calls", drafter.calls}};
    std::error_code error;
    fs::create_directories(directory_, error);
    if (error) return fail(ErrorKind::io, "{}: {}", directory_.string(), error.message());
    const fs::path part = file_.string() + "." + std::to_string(::getpid()) + ".part";
    fs::remove(part, error);
    ESPALIER_RETURN_IF_ERROR(checkpoint::write_text(part, file.dump()));
    fs::rename(part, file_, error);
    if (error) return fail(ErrorKind::io, "{}: cannot rename: {}", file_.string(), error.message());
    remove_oldest();
    return {};
}

// Parts too, which an engine that was killed left behind.
void SpeculationMemory::remove_oldest() const {
    std::vector<std::pair<fs::file_time_type, fs::path>> files;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(directory_, error)) {
        const std::string extension = entry.path().extension().string();
        if (extension != kSuffix && extension != ".part") continue;
        const auto time = entry.last_write_time(error);
        if (!error) files.emplace_back(time, entry.path());
    }
    if (files.size() <= kMostFiles) return;
    std::ranges::sort(files);
    for (std::size_t i = 0; i + kMostFiles < files.size(); ++i) fs::remove(files[i].second, error);
}

std::string machine_name() {
    constexpr std::string_view kName = "model name";
    std::ifstream in("/proc/cpuinfo");
    for (std::string line; std::getline(in, line);)
        if (line.starts_with(kName)) return line.substr(line.find(':') + 1);
    return {};
}

}  // namespace espalier::runtime
