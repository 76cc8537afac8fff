// SPDX-License-Identifier: Apache-2.0
#include "model/golden_file.hpp"

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/json.hpp"

namespace espalier::model {
namespace {

constexpr std::string_view kMagic = "EGOLDEN1";
constexpr std::size_t kHead = 16;  // magic and header length

std::optional<DType> dtype_named(std::string_view name) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        if (name == name_of(dtype)) return dtype;
    if (name == "fp8") return DType::e4m3;
    return std::nullopt;
}

// The arrays come in the order in which the header names them.
Expected<void> read_arrays(const nlohmann::json& header, std::string_view body,
                           std::string_view file, Golden& golden) {
    const std::size_t count = golden.positions.size() * static_cast<std::size_t>(golden.vocabulary);
    const std::size_t expected = header.at("arrays").size() * count * sizeof(float);
    if (body.size() != expected)
        return fail(ErrorKind::invalid, "{}: arrays take {} bytes, expected {}", file, body.size(),
                    expected);
    for (const auto& name : header.at("arrays")) {
        std::vector<float>& array = name == "f32" ? golden.reference : golden.torch_bf16;
        array.resize(count);
        std::memcpy(array.data(), body.data(), count * sizeof(float));
        body.remove_prefix(count * sizeof(float));
    }
    return {};
}

}  // namespace

Expected<Golden> read_golden(const std::filesystem::path& path) {
    const std::string file = path.filename().string();
    std::ifstream stream(path, std::ios::binary);
    if (!stream) return fail(ErrorKind::not_found, "{}: cannot open it", path.string());
    const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
    std::uint64_t header_bytes = 0;
    if (bytes.size() < kHead || !bytes.starts_with(kMagic))
        return fail(ErrorKind::invalid, "{}: {} bytes that do not begin with {}", file,
                    bytes.size(), kMagic);
    std::memcpy(&header_bytes, bytes.data() + kMagic.size(), sizeof(header_bytes));
    if (header_bytes > bytes.size() - kHead)
        return fail(ErrorKind::invalid, "{}: a header of {} bytes in a file of {}", file,
                    header_bytes, bytes.size());
    const auto all = std::string_view(bytes).substr(kHead);
    ESPALIER_ASSIGN_OR_RETURN(const nlohmann::json header,
                              parse_json(all.substr(0, header_bytes), file));

    Golden golden;
    const auto dtype = dtype_named(header.at("dtype").get<std::string>());
    if (!dtype) return fail(ErrorKind::invalid, "{}: dtype {}", file, header.at("dtype").dump());
    golden.dtype = *dtype;
    golden.name = header.at("name");
    golden.seed = header.at("seed");
    golden.config_json = header.at("config");
    golden.vocabulary = header.at("vocabulary");
    golden.prompt = header.at("prompt").get<std::vector<std::int32_t>>();
    golden.positions = header.at("positions").get<std::vector<std::int32_t>>();
    golden.continuation = header.at("continuation").get<std::vector<std::int32_t>>();
    const nlohmann::json chosen = header.value("chosen", nlohmann::json::object());
    for (const auto& [layer, positions] : chosen.items())
        for (const auto& [position, keys] : positions.items())
            golden.chosen.push_back(
                {std::stoll(layer), std::stoi(position), keys.get<std::vector<std::int32_t>>()});
    ESPALIER_RETURN_IF_ERROR(read_arrays(header, all.substr(header_bytes), file, golden));
    return golden;
}

}  // namespace espalier::model
