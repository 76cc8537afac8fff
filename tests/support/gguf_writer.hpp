// SPDX-License-Identifier: Apache-2.0
// Writes GGUF files for tests, good ones and, where a test asks for it, bad ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace espalier {

template <typename T>
std::string raw_bytes(T value) {
    std::string bytes(sizeof(T), '\0');
    std::memcpy(bytes.data(), &value, sizeof(T));
    return bytes;
}

class GgufWriter {
  public:
    std::uint32_t version = 3;
    std::uint64_t alignment = 32;
    std::uint64_t keys = 0, tensor_count = 0;  // what the file claims; counted along
    std::string values, infos, data;

    static std::string string_bytes(std::string_view text) {
        return raw_bytes(std::uint64_t{text.size()}) + std::string(text);
    }
    void value(std::string_view key, std::uint32_t type, std::string_view payload) {
        values += string_bytes(key) + raw_bytes(type) + std::string(payload);
        ++keys;
    }
    void u32(std::string_view key, std::uint32_t number) { value(key, 4, raw_bytes(number)); }
    void f32(std::string_view key, float number) { value(key, 6, raw_bytes(number)); }
    void boolean(std::string_view key, bool truth) {
        value(key, 7, truth ? "\1" : std::string(1, '\0'));
    }
    void text(std::string_view key, std::string_view words) { value(key, 8, string_bytes(words)); }
    void texts(std::string_view key, const std::vector<std::string>& list) {
        std::string payload = raw_bytes(std::uint32_t{8}) + raw_bytes(std::uint64_t{list.size()});
        for (const std::string& one : list) payload += string_bytes(one);
        value(key, 9, payload);
    }
    void i32s(std::string_view key, const std::vector<std::int32_t>& list) {
        std::string payload = raw_bytes(std::uint32_t{5}) + raw_bytes(std::uint64_t{list.size()});
        for (const std::int32_t one : list) payload += raw_bytes(one);
        value(key, 9, payload);
    }
    // shape: outermost first. offset: where the data is, unless told otherwise.
    void tensor(std::string_view name, std::vector<std::uint64_t> shape, std::uint32_t type,
                std::string_view bytes, std::int64_t offset = -1) {
        data.resize((data.size() + alignment - 1) / alignment * alignment);
        infos += string_bytes(name) + raw_bytes(static_cast<std::uint32_t>(shape.size()));
        for (auto extent = shape.rbegin(); extent != shape.rend(); ++extent)
            infos += raw_bytes(*extent);
        infos += raw_bytes(type) + raw_bytes(offset < 0 ? std::uint64_t{data.size()}
                                                        : static_cast<std::uint64_t>(offset));
        data += bytes;
        ++tensor_count;
    }
    std::string bytes() const {
        std::string all = "GGUF" + raw_bytes(version) + raw_bytes(tensor_count) + raw_bytes(keys) +
                          values + infos;
        all.resize((all.size() + alignment - 1) / alignment * alignment);
        return all + data;
    }
    void save(const std::filesystem::path& path) const {
        const std::string all = bytes();
        std::ofstream(path, std::ios::binary)
            .write(all.data(), static_cast<std::streamsize>(all.size()));
    }
};

}  // namespace espalier
