// SPDX-License-Identifier: Apache-2.0
#include "base/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <set>

namespace espalier {
namespace {

constexpr std::uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr std::uint64_t kMaxKeyBytes = 65535;
constexpr std::uint64_t kMaxNameBytes = 256;  // the reference has 63
constexpr std::uint32_t kMaxDimensions = 4;
constexpr std::int64_t kDefaultAlignment = 32;
constexpr std::int64_t kMaxAlignment = 1 << 20;

constexpr std::array<std::uint8_t, 13> kWidths = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
std::uint64_t width_of(GgufType type) { return kWidths[static_cast<std::size_t>(type)]; }

struct TensorType {
    std::uint32_t id;
    std::string_view name;
    std::uint32_t weights;  // of one block
    std::uint32_t bytes;
};
constexpr std::array<TensorType, 34> kTensorTypes = {{
    {0, "F32", 1, 4},         {1, "F16", 1, 2},         {2, "Q4_0", 32, 18},
    {3, "Q4_1", 32, 20},      {6, "Q5_0", 32, 22},      {7, "Q5_1", 32, 24},
    {8, "Q8_0", 32, 34},      {9, "Q8_1", 32, 36},      {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110},   {12, "Q4_K", 256, 144},   {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210},   {15, "Q8_K", 256, 292},   {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},  {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18},   {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136}, {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {26, "I32", 1, 4},        {27, "I64", 1, 8},        {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},   {30, "BF16", 1, 2},       {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {39, "MXFP4", 32, 17},    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},
}};

template <typename T>
T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(value));
    return value;
}

bool is_printable(std::string_view text) {
    return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

// Control characters and bytes beyond ASCII as dots.
std::string printable(std::string_view text) {
    constexpr std::size_t kShown = 60;
    std::string shown(text.substr(0, kShown));
    for (char& c : shown)
        if (c < ' ' || c > '~') c = '.';
    return text.size() > kShown ? shown + "…" : shown;
}

// Reads on; the first number that does not fit ends it.
class Cursor {
  public:
    Cursor(std::span<const std::byte> bytes, std::string_view name) : bytes_(bytes), name_(name) {}

    std::uint64_t at() const { return at_; }
    std::uint64_t left() const { return bytes_.size() - at_; }
    std::string_view name() const { return name_; }

    Expected<std::span<const std::byte>> take(std::uint64_t count, std::string_view what) {
        if (count > left())
            return fail(ErrorKind::invalid, "{}: {} of {} bytes at {}, but the file has {} bytes",
                        name_, what, count, at_, bytes_.size());
        const auto taken = bytes_.subspan(at_, static_cast<std::size_t>(count));
        at_ += static_cast<std::size_t>(count);
        return taken;
    }
    template <typename T>
    Expected<T> number(std::string_view what) {
        ESPALIER_ASSIGN_OR_RETURN(const auto bytes, take(sizeof(T), what));
        return load<T>(bytes.data());
    }
    Expected<std::string_view> text(std::uint64_t limit, std::string_view what) {
        ESPALIER_ASSIGN_OR_RETURN(const auto length, number<std::uint64_t>(what));
        if (length > limit)
            return fail(ErrorKind::invalid, "{}: {} of {} bytes at {}, the limit is {}", name_,
                        what, length, at_, limit);
        ESPALIER_ASSIGN_OR_RETURN(const auto bytes, take(length, what));
        return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }

  private:
    std::span<const std::byte> bytes_;
    std::string_view name_;
    std::size_t at_ = 0;
};

Expected<GgufType> read_type(Cursor& cursor, std::string_view key) {
    ESPALIER_ASSIGN_OR_RETURN(const auto id, cursor.number<std::uint32_t>("a value's type"));
    if (id < kWidths.size()) return static_cast<GgufType>(id);
    return fail(ErrorKind::invalid, "{}: '{}' has values of type {}, known are 0 to {}",
                cursor.name(), key, id, kWidths.size() - 1);
}

Expected<void> skip_elements(Cursor& cursor, std::string_view key, GgufValue& value) {
    const std::uint64_t width = width_of(value.element);
    // A text has at least its length.
    const std::uint64_t least = width > 0 ? width : sizeof(std::uint64_t);
    if (value.count > cursor.left() / least)
        return fail(ErrorKind::invalid,
                    "{}: '{}' has {} elements of {} bytes or more, but the file has {} bytes left",
                    cursor.name(), key, value.count, least, cursor.left());
    if (width > 0) return cursor.take(value.count * width, key).map([](auto) {});
    for (std::uint64_t i = 0; i < value.count; ++i)
        ESPALIER_RETURN_IF_ERROR(cursor.text(~std::uint64_t{0}, key));
    return {};
}

Expected<GgufValue> read_value(Cursor& cursor, std::string_view key,
                               std::span<const std::byte> file) {
    GgufValue value;
    ESPALIER_ASSIGN_OR_RETURN(value.type, read_type(cursor, key));
    value.element = value.type;
    if (value.type == GgufType::array) {
        ESPALIER_ASSIGN_OR_RETURN(value.element, read_type(cursor, key));
        if (value.element == GgufType::array)
            return fail(ErrorKind::unsupported, "{}: '{}' is an array of arrays", cursor.name(),
                        key);
        ESPALIER_ASSIGN_OR_RETURN(value.count, cursor.number<std::uint64_t>(key));
    }
    const auto begin = static_cast<std::size_t>(cursor.at());
    ESPALIER_RETURN_IF_ERROR(skip_elements(cursor, key, value));
    value.bytes = file.subspan(begin, static_cast<std::size_t>(cursor.at()) - begin);
    return value;
}

Expected<void> read_values(Cursor& cursor, std::uint64_t count, std::span<const std::byte> file,
                           GgufHeader& header) {
    for (std::uint64_t i = 0; i < count; ++i) {
        ESPALIER_ASSIGN_OR_RETURN(const auto key, cursor.text(kMaxKeyBytes, "a key"));
        if (key.empty() || !is_printable(key))
            return fail(ErrorKind::invalid, "{}: key {} is '{}', no printable ASCII without spaces",
                        cursor.name(), i, printable(key));
        ESPALIER_ASSIGN_OR_RETURN(const GgufValue value, read_value(cursor, key, file));
        if (!header.values.emplace(key, value).second)
            return fail(ErrorKind::invalid, "{}: '{}' is there twice", cursor.name(), key);
    }
    return {};
}

// Sets `end` to the tensor's size until its place is known.
Expected<void> read_size(std::string_view name, std::uint32_t type_id, GgufTensor& tensor) {
    const auto* type = std::ranges::find(kTensorTypes, type_id, &TensorType::id);
    if (type == kTensorTypes.end())
        return fail(ErrorKind::unsupported, "{}: tensor '{}' is of type {}, which is not known",
                    name, tensor.name, type_id);
    tensor.type = type->name;
    if (tensor.shape.back() % type->weights != 0)
        return fail(ErrorKind::invalid, "{}: tensor '{}' has rows of {}, no multiple of {}'s {}",
                    name, tensor.name, tensor.shape.back(), type->name, type->weights);
    std::int64_t weights = 1, bytes = 0;
    for (const std::int64_t extent : tensor.shape)
        if (__builtin_mul_overflow(weights, extent, &weights))
            return fail(ErrorKind::invalid, "{}: tensor '{}' has more than 2^63 weights", name,
                        tensor.name);
    if (__builtin_mul_overflow(weights / type->weights, std::int64_t{type->bytes}, &bytes))
        return fail(ErrorKind::invalid, "{}: tensor '{}' has more than 2^63 bytes", name,
                    tensor.name);
    tensor.end = static_cast<std::uint64_t>(bytes);
    return {};
}

Expected<GgufTensor> read_tensor(Cursor& cursor) {
    GgufTensor tensor;
    ESPALIER_ASSIGN_OR_RETURN(tensor.name, cursor.text(kMaxNameBytes, "a tensor's name"));
    if (tensor.name.empty() || !is_printable(tensor.name))
        return fail(ErrorKind::invalid, "{}: a tensor is called '{}', no printable ASCII",
                    cursor.name(), printable(tensor.name));
    ESPALIER_ASSIGN_OR_RETURN(const auto dimensions, cursor.number<std::uint32_t>(tensor.name));
    if (dimensions == 0 || dimensions > kMaxDimensions)
        return fail(ErrorKind::invalid, "{}: tensor '{}' has {} dimensions, expected 1 to {}",
                    cursor.name(), tensor.name, dimensions, kMaxDimensions);
    for (std::uint32_t i = 0; i < dimensions; ++i) {
        ESPALIER_ASSIGN_OR_RETURN(const auto extent, cursor.number<std::int64_t>(tensor.name));
        if (extent < 1)
            return fail(ErrorKind::invalid, "{}: tensor '{}' has an extent of {}", cursor.name(),
                        tensor.name, extent);
        tensor.shape.insert(tensor.shape.begin(), extent);
    }
    ESPALIER_ASSIGN_OR_RETURN(const auto type, cursor.number<std::uint32_t>(tensor.name));
    ESPALIER_RETURN_IF_ERROR(read_size(cursor.name(), type, tensor));
    ESPALIER_ASSIGN_OR_RETURN(tensor.begin, cursor.number<std::uint64_t>(tensor.name));
    return tensor;
}

Expected<std::uint64_t> read_alignment(const GgufHeader& header, std::string_view name) {
    const GgufValue* value = header.find("general.alignment");
    if (value == nullptr) return static_cast<std::uint64_t>(kDefaultAlignment);
    const std::int64_t alignment = value->integer().value_or(0);
    if (alignment < 8 || alignment > kMaxAlignment ||
        !std::has_single_bit(static_cast<std::uint64_t>(alignment)))
        return fail(ErrorKind::invalid,
                    "{}: general.alignment is {}, expected a power of two from 8 to {}", name,
                    value->shown(), kMaxAlignment);
    return static_cast<std::uint64_t>(alignment);
}

// From offsets to places in the file. Data is contiguous but for the padding to the alignment: what
// lies elsewhere belongs to nothing.
Expected<void> place_tensors(std::uint64_t alignment, std::uint64_t file_bytes,
                             std::string_view name, GgufHeader& header) {
    std::ranges::stable_sort(header.tensors, {}, &GgufTensor::begin);
    const std::uint64_t data_bytes =
        file_bytes > header.data_begin ? file_bytes - header.data_begin : 0;
    std::uint64_t end = 0;
    for (GgufTensor& tensor : header.tensors) {
        const std::uint64_t expected = (end + alignment - 1) / alignment * alignment;
        if (tensor.begin != expected)
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' begins at {} of the data, expected {}: {}", name,
                        tensor.name, tensor.begin, expected,
                        tensor.begin < expected ? "it overlaps another" : "a hole before it");
        if (tensor.end > data_bytes || tensor.begin > data_bytes - tensor.end)
            return fail(ErrorKind::invalid,
                        "{}: tensor '{}' of {} bytes begins at {} of the data, but the file has {} "
                        "bytes of it",
                        name, tensor.name, tensor.end, tensor.begin, data_bytes);
        end = tensor.begin + tensor.end;
        tensor.begin += header.data_begin;
        tensor.end += tensor.begin;
    }
    if (data_bytes - std::min(data_bytes, end) >= alignment)
        return fail(ErrorKind::invalid, "{}: tensors end at {} of the data but it has {} bytes",
                    name, end, data_bytes);
    return {};
}

}  // namespace

std::optional<std::int64_t> GgufValue::integer() const {
    switch (type) {
        case GgufType::u8:
            return load<std::uint8_t>(bytes.data());
        case GgufType::i8:
            return load<std::int8_t>(bytes.data());
        case GgufType::u16:
            return load<std::uint16_t>(bytes.data());
        case GgufType::i16:
            return load<std::int16_t>(bytes.data());
        case GgufType::u32:
            return load<std::uint32_t>(bytes.data());
        case GgufType::i32:
            return load<std::int32_t>(bytes.data());
        case GgufType::u64:
            if (const auto wide = load<std::uint64_t>(bytes.data()); wide <= INT64_MAX)
                return static_cast<std::int64_t>(wide);
            return std::nullopt;
        case GgufType::i64:
            return load<std::int64_t>(bytes.data());
        default:
            return std::nullopt;
    }
}

std::optional<double> GgufValue::number() const {
    if (type == GgufType::f64) {
        const auto value = load<double>(bytes.data());
        return std::isfinite(value) ? std::optional(value) : std::nullopt;
    }
    if (type != GgufType::f32) {
        const auto whole = integer();
        return whole ? std::optional(static_cast<double>(*whole)) : std::nullopt;
    }
    std::array<char, 32> digits;
    const auto written =
        std::to_chars(digits.data(), digits.data() + digits.size(), load<float>(bytes.data()));
    double value = 0;
    const auto read = std::from_chars(digits.data(), written.ptr, value);
    return read.ec == std::errc() && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<bool> GgufValue::boolean() const {
    if (type != GgufType::boolean || bytes[0] > std::byte{1}) return std::nullopt;
    return bytes[0] == std::byte{1};
}

std::optional<std::string_view> GgufValue::text() const {
    if (type != GgufType::text) return std::nullopt;
    return std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())
        .substr(sizeof(std::uint64_t));
}

std::optional<std::vector<std::string_view>> GgufValue::texts() const {
    if (type != GgufType::array || element != GgufType::text) return std::nullopt;
    std::vector<std::string_view> result;
    result.reserve(static_cast<std::size_t>(count));
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
        const auto length = static_cast<std::size_t>(load<std::uint64_t>(bytes.data() + at));
        at += sizeof(std::uint64_t);
        result.emplace_back(reinterpret_cast<const char*>(bytes.data()) + at, length);
        at += length;
    }
    return result;
}

std::optional<std::vector<std::int64_t>> GgufValue::integers() const {
    if (type != GgufType::array) return std::nullopt;
    std::vector<std::int64_t> result;
    result.reserve(static_cast<std::size_t>(count));
    const auto width = static_cast<std::size_t>(width_of(element));
    for (std::uint64_t i = 0; i < count; ++i) {
        const GgufValue one{.type = element,
                            .element = element,
                            .bytes = width > 0 ? bytes.subspan(i * width, width) : bytes};
        const auto value = one.integer();
        if (!value) return std::nullopt;
        result.push_back(*value);
    }
    return result;
}

std::string GgufValue::shown() const {
    if (type == GgufType::array) return fmt::format("a list of {}", count);
    if (const auto string = text()) return fmt::format("'{}'", printable(*string));
    if (const auto truth = boolean()) return *truth ? "true" : "false";
    if (const auto whole = integer()) return std::to_string(*whole);
    if (const auto real = number()) return fmt::format("{}", *real);
    return "no value of its type";
}

bool is_gguf_name(std::string_view path) { return path.ends_with(".gguf"); }

Expected<GgufHeader> parse_gguf(std::span<const std::byte> bytes, std::string_view name) {
    Cursor cursor(bytes, name);
    GgufHeader header;
    ESPALIER_ASSIGN_OR_RETURN(const auto magic, cursor.number<std::uint32_t>("the first word"));
    if (magic != kMagic)
        return fail(ErrorKind::invalid, "{}: begins with 0x{:08x}, a GGUF file with 0x{:08x}", name,
                    magic, kMagic);
    ESPALIER_ASSIGN_OR_RETURN(header.version, cursor.number<std::uint32_t>("the version"));
    if (header.version != 2 && header.version != 3)
        return fail(ErrorKind::unsupported, "{}: GGUF version {}{}, supported are 2 and 3", name,
                    header.version,
                    header.version != 0 && header.version % 65536 == 0 ? " (big-endian)" : "");
    ESPALIER_ASSIGN_OR_RETURN(const auto tensors, cursor.number<std::uint64_t>("the tensors"));
    ESPALIER_ASSIGN_OR_RETURN(const auto values, cursor.number<std::uint64_t>("the keys"));
    ESPALIER_RETURN_IF_ERROR(read_values(cursor, values, bytes, header));
    std::set<std::string, std::less<>> names;
    for (std::uint64_t i = 0; i < tensors; ++i) {
        ESPALIER_ASSIGN_OR_RETURN(GgufTensor tensor, read_tensor(cursor));
        if (!names.insert(tensor.name).second)
            return fail(ErrorKind::invalid, "{}: tensor '{}' is there twice", name, tensor.name);
        header.tensors.push_back(std::move(tensor));
    }
    ESPALIER_ASSIGN_OR_RETURN(const std::uint64_t alignment, read_alignment(header, name));
    header.data_begin = (cursor.at() + alignment - 1) / alignment * alignment;
    ESPALIER_RETURN_IF_ERROR(place_tensors(alignment, bytes.size(), name, header));
    return header;
}

}  // namespace espalier
