// SPDX-License-Identifier: Apache-2.0
#include "cli/mla_shapes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>

#include "cli/csv.hpp"

namespace espalier::cli {
namespace {

template <typename T>
std::optional<T> number(const std::string& text) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

using Columns = std::map<std::string, std::size_t>;

Expected<std::vector<std::string>> cells_of(const std::string& line, const std::string& path,
                                            int at) {
    if (auto cells = csv_cells(line)) return *std::move(cells);
    return fail(ErrorKind::invalid, "{}, line {}: a quoted cell does not end with its quote", path,
                at);
}

Expected<std::int32_t> count_in(const std::vector<std::string>& cells, const Columns& columns,
                                const std::string& name, const std::string& path, int line) {
    const std::size_t at = columns.at(name);
    const auto value = at < cells.size() ? number<std::int32_t>(cells[at]) : std::nullopt;
    if (!value || *value < 1 || *value > 1 << 20)
        return fail(ErrorKind::invalid, "{}, line {}: {} is '{}', not a number from 1 to {}", path,
                    line, name, at < cells.size() ? cells[at] : "", 1 << 20);
    return *value;
}

}  // namespace

Expected<std::vector<MlaShape>> read_shapes(const std::string& path, mla::KvFormat format) {
    std::ifstream in(path);
    std::string line;
    if (!in || !std::getline(in, line))
        return fail(ErrorKind::io, "{}: cannot be read, or is empty", path);
    Columns columns;
    ESPALIER_ASSIGN_OR_RETURN(const auto names, cells_of(line, path, 1));
    for (const std::string& name : names) columns.emplace(name, columns.size());
    for (const char* name : {"batch", "kv_len", "heads", "q_len"})
        if (columns.count(name) == 0)
            return fail(ErrorKind::invalid, "{}: the header has no column {}", path, name);
    const bool fp8 = format == mla::KvFormat::fp8_tensor || format == mla::KvFormat::fp8_token;
    const auto peer = columns.find(fp8 ? "flashinfer_fp8kv_us" : "best_bf16_peer_us");
    std::vector<MlaShape> shapes;
    for (int at = 2; std::getline(in, line); ++at) {
        if (line.empty() || line == "\r") continue;
        ESPALIER_ASSIGN_OR_RETURN(const auto cells, cells_of(line, path, at));
        MlaShape shape;
        ESPALIER_ASSIGN_OR_RETURN(shape.batch, count_in(cells, columns, "batch", path, at));
        ESPALIER_ASSIGN_OR_RETURN(shape.kv_len, count_in(cells, columns, "kv_len", path, at));
        ESPALIER_ASSIGN_OR_RETURN(shape.heads, count_in(cells, columns, "heads", path, at));
        ESPALIER_ASSIGN_OR_RETURN(shape.q_len, count_in(cells, columns, "q_len", path, at));
        if (peer != columns.end() && peer->second < cells.size())
            if (const auto us = number<double>(cells[peer->second]))
                shape.peer_seconds = *us * 1e-6;
        shapes.push_back(shape);
    }
    return shapes;
}

std::vector<MlaShape> usual_shapes(bool cuda) {
    struct Cache {
        std::int32_t batch;
        std::int32_t kv_len;
    };
    std::vector<MlaShape> shapes;
    if (!cuda) {  // one layer of one request: 1, 4, 16, 64 and 128 packed rows
        struct Rows {
            std::int32_t heads;
            std::int32_t q_len;
        };
        for (const std::int32_t kv_len : {2048, 8192})
            for (const Rows& rows :
                 {Rows{1, 1}, Rows{4, 1}, Rows{16, 1}, Rows{16, 4}, Rows{64, 1}, Rows{128, 1}})
                shapes.push_back({1, kv_len, rows.heads, rows.q_len, {}});
        return shapes;
    }
    for (const Cache& cache : {Cache{1, 8192}, Cache{10, 2048}, Cache{1, 65536}, Cache{32, 8192},
                               Cache{4, 81920}, Cache{128, 4096}})
        for (const std::int32_t heads : {16, 32, 64, 128})
            for (const std::int32_t q_len : {1, 2, 4, 8})
                if (heads * q_len <= 128)
                    shapes.push_back({cache.batch, cache.kv_len, heads, q_len, {}});
    return shapes;
}

MlaCost cost_of(const MlaShape& shape, mla::KvFormat format, DType query, DType out) {
    const double rows = static_cast<double>(shape.batch) * static_cast<double>(shape.packed_rows());
    const double slots = static_cast<double>(shape.batch) * shape.kv_len;
    MlaCost cost;
    cost.bytes = slots * static_cast<double>(mla::page_stride_bytes(format, 64)) / 64 +
                 rows * static_cast<double>(mla::kKey) * static_cast<double>(bytes_of(query)) +
                 rows * static_cast<double>(mla::kLatent) * static_cast<double>(bytes_of(out));
    cost.flops = 2 * rows * shape.kv_len * static_cast<double>(mla::kKey + mla::kLatent);
    return cost;
}

std::string group_means(const std::vector<MlaTiming>& timings) {
    struct Group {
        const char* name;
        std::function<bool(const MlaShape&)> holds;
    };
    const auto narrow = [](const MlaShape& s) { return s.packed_rows() <= 64; };
    const Group groups[] = {
        {"R ≤ 64", narrow},
        {"R ≤ 64, small caches", [&](const MlaShape& s) { return narrow(s) && s.small_cache(); }},
        {"R ≤ 64, large caches", [&](const MlaShape& s) { return narrow(s) && !s.small_cache(); }},
        {"R ≥ 128", [](const MlaShape& s) { return s.packed_rows() >= 128; }},
        {"small caches", [](const MlaShape& s) { return s.small_cache(); }},
        {"large caches", [](const MlaShape& s) { return !s.small_cache(); }},
    };
    std::string text;
    for (const Group& group : groups) {
        double log_floor = 0;
        double log_peer = 0;
        double worst = 1e30;
        int shapes = 0;
        int peers = 0;
        for (const MlaTiming& timing : timings) {
            if (!group.holds(timing.shape)) continue;
            ++shapes;
            log_floor += std::log(timing.seconds / timing.floor_seconds);
            if (!timing.shape.peer_seconds) continue;
            ++peers;
            const double ratio = *timing.shape.peer_seconds / timing.seconds;
            log_peer += std::log(ratio);
            worst = std::min(worst, ratio);
        }
        if (shapes == 0) continue;
        text += fmt::format("{}: {} shapes, {:.2f} × the floor", group.name, shapes,
                            std::exp(log_floor / shapes));
        if (peers > 0)
            text += fmt::format(", {:.2f} × the peer's speed (at worst {:.2f})",
                                std::exp(log_peer / peers), worst);
        text += "\n";
    }
    return text;
}

}  // namespace espalier::cli
