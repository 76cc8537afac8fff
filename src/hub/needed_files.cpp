// SPDX-License-Identifier: Apache-2.0
#include "hub/needed_files.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json.hpp"
#include "checkpoint/plain_name.hpp"

namespace espalier::hub {
namespace {

constexpr const char* kTexts[] = {
    "config.json",    "generation_config.json", "tokenizer.json",       "tokenizer_config.json",
    "tiktoken.model", "chat_template.jinja",    "hf_quant_config.json", kIndexFile};
constexpr const char* kOneFile = "model.safetensors";
constexpr std::string_view kGguf = ".gguf";
constexpr std::size_t kMostNamed = 12;  // in an error

bool is_among(const std::vector<std::string>& there, std::string_view name) {
    return std::ranges::find(there, name) != there.end();
}

std::vector<std::string> ending_in(const std::vector<std::string>& there, std::string_view end) {
    std::vector<std::string> found;
    for (const std::string& name : there)
        if (name.ends_with(end) && found.size() < kMostNamed) found.push_back(name);
    return found;
}

tl::unexpected<Error> no_weights_there(const std::vector<std::string>& there) {
    if (const auto files = ending_in(there, kGguf); !files.empty())
        return fail(ErrorKind::not_found,
                    "it holds GGUF files: name the one that is meant, as ORG/NAME/{} (there: {})",
                    files.front(), fmt::join(files, ", "));
    if (const auto files = ending_in(there, ".bin"); !files.empty())
        return fail(ErrorKind::unsupported,
                    "it holds no safetensors; {} is of a format that can run code", files.front());
    return fail(ErrorKind::not_found, "it holds neither {} nor {}", kOneFile, kIndexFile);
}

// "-00001-of-00003.gguf": 3; another end: 0.
int parts_of(std::string_view file) {
    constexpr std::string_view kForm = "-00001-of-00003.gguf";
    if (file.size() < kForm.size()) return 0;
    const std::string_view end = file.substr(file.size() - kForm.size());
    if (!end.starts_with('-') || end.substr(6, 4) != "-of-") return 0;
    int count = 0;
    const std::string_view digits = end.substr(10, 5);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), count);
    return read.ec == std::errc() && read.ptr == digits.data() + digits.size() ? count : 0;
}

}  // namespace

bool is_plain_path(std::string_view path) {
    for (;;) {
        const std::size_t end = path.find('/');
        if (!checkpoint::is_plain_name(path.substr(0, end))) return false;
        if (end == std::string_view::npos) return true;
        path.remove_prefix(end + 1);
    }
}

std::vector<std::string> needed_texts(const std::vector<std::string>& there) {
    std::vector<std::string> texts;
    for (const char* name : kTexts)
        if (is_among(there, name)) texts.emplace_back(name);
    return texts;
}

Expected<std::vector<std::string>> needed_weights(const std::vector<std::string>& there,
                                                  std::string_view index) {
    if (index.empty()) {
        if (is_among(there, kOneFile)) return std::vector<std::string>{kOneFile};
        return no_weights_there(there);
    }
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json document, parse_json(index, kIndexFile));
    const auto map = document.is_object() ? document.find("weight_map") : document.end();
    if (map == document.end() || !map->is_object() || map->empty())
        return fail(ErrorKind::invalid, "{}: no weight_map of tensor names to file names",
                    kIndexFile);
    std::set<std::string> files;
    for (const auto& [tensor, file] : map->items()) {
        const auto* name = file.get_ptr<const std::string*>();
        if (name == nullptr || !checkpoint::is_plain_name(*name) ||
            !name->ends_with(".safetensors"))
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' is promised in {}, which is no plain name of a "
                        ".safetensors file",
                        kIndexFile, tensor, file.dump().substr(0, 200));
        files.insert(*name);
    }
    for (const std::string& name : files)
        if (!is_among(there, name))
            return fail(ErrorKind::not_found, "{} names {}, which is not among its {} files",
                        kIndexFile, name, there.size());
    return std::vector<std::string>(files.begin(), files.end());
}

Expected<std::vector<std::string>> needed_gguf(const std::vector<std::string>& there,
                                               const std::string& file) {
    if (!is_among(there, file))
        return fail(ErrorKind::not_found, "it has no {} (of GGUF files there are: {})", file,
                    fmt::join(ending_in(there, kGguf), ", "));
    const int parts = parts_of(file);
    if (parts == 0) return std::vector<std::string>{file};
    const std::string stem =
        file.substr(0, file.size() - std::string_view("00001-of-00003.gguf").size());
    std::vector<std::string> files;
    for (int part = 1; part <= parts; ++part) {
        files.push_back(fmt::format("{}{:05}-of-{:05}.gguf", stem, part, parts));
        if (!is_among(there, files.back()))
            return fail(ErrorKind::not_found, "part {} of {} is not there: {}", part, parts,
                        files.back());
    }
    return files;
}

}  // namespace espalier::hub
