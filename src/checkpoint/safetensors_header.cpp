// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/safetensors_header.hpp"

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

namespace espalier::checkpoint {
namespace {

struct TypeName {
    std::string_view name;
    StoredType type;
    std::uint64_t bytes;
};
constexpr std::array<TypeName, 15> kTypes = {{
    {"F64", StoredType::f64, 8},
    {"F32", StoredType::f32, 4},
    {"F16", StoredType::f16, 2},
    {"BF16", StoredType::bf16, 2},
    {"F8_E4M3", StoredType::e4m3, 1},
    {"F8_E5M2", StoredType::e5m2, 1},
    {"I64", StoredType::i64, 8},
    {"I32", StoredType::i32, 4},
    {"I16", StoredType::i16, 2},
    {"I8", StoredType::i8, 1},
    {"U64", StoredType::u64, 8},
    {"U32", StoredType::u32, 4},
    {"U16", StoredType::u16, 2},
    {"U8", StoredType::u8, 1},
    {"BOOL", StoredType::boolean, 1},
}};

// Events of nlohmann's SAX parser (its interface fixes the names). Every handler returns false
// after setting error_, which ends the parse.
class HeaderEvents {
  public:
    explicit HeaderEvents(std::string_view name) : name_(name) {}

    TensorEntries& entries() { return entries_; }
    Error& error() { return error_; }

    bool null() { return (metadata_ && depth_ == 1) || scalar("null"); }
    bool boolean(bool) { return scalar("a boolean"); }
    bool number_float(double, const std::string& text) { return scalar(text); }
    bool number_integer(std::int64_t value) { return scalar(std::to_string(value)); }
    bool binary(nlohmann::json::binary_t&) { return scalar("binary"); }

    bool number_unsigned(std::uint64_t value) {
        if (in_metadata() || depth_ != 3) return scalar(std::to_string(value));
        if (field_ == Field::shape) {
            if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
                return refuse("tensor '{}': dimension {} is above {}", tensor_, value,
                              std::numeric_limits<std::int64_t>::max());
            entry_.shape.push_back(static_cast<std::int64_t>(value));
            return true;
        }
        if (offsets_ == 2) return refuse("tensor '{}': more than 2 data_offsets", tensor_);
        (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
        return true;
    }

    bool string(std::string& value) {
        if (in_metadata()) return depth_ == 2 || refuse("__metadata__ is no map of strings");
        if (depth_ != 2 || field_ != Field::dtype) return scalar("a string");
        has_type_ = true;
        for (const TypeName& known : kTypes) {
            if (known.name != value) continue;
            entry_.type = known.type;
            return true;
        }
        entry_.type = StoredType::other;
        entry_.other_type = value;
        return true;
    }

    bool key(std::string& value) {
        if (depth_ == 1) {
            metadata_ = value == "__metadata__";
            tensor_ = std::move(value);
            field_ = Field::none;
            const bool repeated = metadata_ ? std::exchange(seen_metadata_, true)
                                            : entries_.find(tensor_) != entries_.end();
            if (repeated) return refuse("tensor '{}' is listed twice", tensor_);
            return true;
        }
        if (in_metadata()) return true;
        return tensor_field(value);
    }

    bool start_object(std::size_t) {
        ++depth_;
        if (depth_ == 1 || (metadata_ && depth_ == 2)) return true;
        if (metadata_) return refuse("__metadata__ is no map of strings");
        if (depth_ != 2) return refuse("tensor '{}': an object where a value belongs", tensor_);
        entry_ = {};
        field_ = Field::none;
        has_type_ = has_shape_ = has_offsets_ = false;
        return true;
    }

    bool end_object() {
        --depth_;
        if (depth_ != 1 || metadata_) return true;
        if (!has_type_ || !has_shape_ || !has_offsets_)
            return refuse("tensor '{}' has no {}", tensor_,
                          !has_type_    ? "dtype"
                          : !has_shape_ ? "shape"
                                        : "data_offsets");
        entries_.emplace(std::move(tensor_), std::move(entry_));
        return true;
    }

    bool start_array(std::size_t) {
        ++depth_;
        if (in_metadata()) return refuse("__metadata__ is no map of strings");
        if (depth_ != 3 || (field_ != Field::shape && field_ != Field::offsets))
            return refuse("tensor '{}': a list where another value belongs", tensor_);
        offsets_ = 0;
        return true;
    }

    bool end_array() {
        --depth_;
        if (field_ == Field::shape) has_shape_ = true;
        if (field_ != Field::offsets) return true;
        if (offsets_ != 2)
            return refuse("tensor '{}': {} data_offsets, expected 2", tensor_, offsets_);
        return has_offsets_ = true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception&) {
        return refuse("not valid JSON at byte {}", position);
    }

  private:
    enum class Field { none, dtype, shape, offsets };

    bool in_metadata() const { return metadata_ && depth_ >= 1; }

    bool tensor_field(std::string_view value) {
        if (value == "dtype" && !has_type_) {
            field_ = Field::dtype;
        } else if (value == "shape" && !has_shape_) {
            field_ = Field::shape;
        } else if (value == "data_offsets" && !has_offsets_) {
            field_ = Field::offsets;
        } else {
            return refuse("tensor '{}': field '{}' is unknown or repeated", tensor_, value);
        }
        return true;
    }

    // A number, string or word where none belongs.
    bool scalar(std::string_view what) {
        if (in_metadata()) return refuse("__metadata__ is no map of strings");
        if (depth_ == 0) return refuse("the header is {}, expected an object", what);
        return refuse("tensor '{}': {} is no valid {}", tensor_, what,
                      field_ == Field::shape     ? "dimension"
                      : field_ == Field::offsets ? "data offset"
                      : field_ == Field::dtype   ? "dtype"
                                                 : "entry");
    }

    template <typename... Args>
    bool refuse(fmt::format_string<Args...> format, Args&&... args) {
        error_ = {
            ErrorKind::invalid,
            fmt::format("{}: header: {}", name_, fmt::format(format, std::forward<Args>(args)...))};
        return false;
    }

    std::string_view name_;
    TensorEntries entries_;
    Error error_;
    std::string tensor_;  // the key at depth 1 being read
    TensorEntry entry_;
    Field field_ = Field::none;
    int depth_ = 0;
    int offsets_ = 0;
    bool metadata_ = false, seen_metadata_ = false;
    bool has_type_ = false, has_shape_ = false, has_offsets_ = false;
};

}  // namespace

std::string_view name_of(StoredType type) {
    for (const TypeName& known : kTypes)
        if (known.type == type) return known.name;
    return "other";
}

std::uint64_t bytes_of(StoredType type) {
    for (const TypeName& known : kTypes)
        if (known.type == type) return known.bytes;
    return 0;
}

Expected<TensorEntries> read_header_json(std::string_view json_text, std::string_view name) {
    HeaderEvents events(name);
    if (!nlohmann::json::sax_parse(json_text.begin(), json_text.end(), &events))
        return tl::unexpected<Error>(std::move(events.error()));
    return std::move(events.entries());
}

}  // namespace espalier::checkpoint
