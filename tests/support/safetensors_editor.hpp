// SPDX-License-Identifier: Apache-2.0
// Takes a safetensors file apart and writes it again, for tests that damage a good one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace espalier {

struct SafetensorsEditor {
    struct Entry {
        std::string dtype;
        std::vector<std::int64_t> shape;
        std::string bytes;
    };
    std::map<std::string, Entry> tensors;

    explicit SafetensorsEditor(std::filesystem::path file) : path(std::move(file)) {
        std::ifstream in(path, std::ios::binary);
        const std::string all{std::istreambuf_iterator<char>(in), {}};
        std::uint64_t length = 0;
        for (std::size_t i = 0; i < 8; ++i)
            length |= std::uint64_t{static_cast<unsigned char>(all[i])} << (8 * i);
        const auto header = nlohmann::json::parse(all.substr(8, length));
        for (const auto& [name, entry] : header.items()) {
            if (name == "__metadata__") continue;
            const std::size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
            tensors[name] = {entry["dtype"], entry["shape"],
                             all.substr(8 + length + begin, end - begin)};
        }
    }

    // Zeros of a dtype whose elements have `element_bytes`.
    void put(const std::string& name, const std::string& dtype, std::vector<std::int64_t> shape,
             std::size_t element_bytes) {
        for (const std::int64_t size : shape) element_bytes *= static_cast<std::size_t>(size);
        tensors[name] = {dtype, std::move(shape), std::string(element_bytes, '\0')};
    }

    void save() const {
        nlohmann::json header;
        std::string data;
        for (const auto& [name, entry] : tensors) {
            const std::size_t begin = data.size();
            data += entry.bytes;
            header[name] = {{"dtype", entry.dtype},
                            {"shape", entry.shape},
                            {"data_offsets", {begin, data.size()}}};
        }
        const std::string text = header.dump();
        std::ofstream out(path, std::ios::binary | std::ios::trunc);
        for (std::size_t i = 0; i < 8; ++i) out.put(static_cast<char>(text.size() >> (8 * i)));
        out << text << data;
    }

    std::filesystem::path path;
};

}  // namespace espalier
