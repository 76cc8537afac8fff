// SPDX-License-Identifier: Apache-2.0
#include "text/pipeline_loader.hpp"

#include "text/json_fields.hpp"

namespace espalier::text {
namespace {

// Words of GPT-2, which ByteLevel with use_regex applies.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::size_t kMaxSteps = 64;

tl::unexpected<Error> unsupported_type(std::string_view name, std::string_view path,
                                       std::string_view type) {
    return fail(ErrorKind::unsupported, "{}: {} of type '{}' is not supported", name, path, type);
}

// A part is one object, or a Sequence that lists them under `list_key`.
Expected<std::vector<const Json*>> flatten(const Json& part, const char* list_key,
                                           std::string_view name, std::string_view path) {
    std::vector<const Json*> parts;
    if (part.is_null()) return parts;
    ESPALIER_ASSIGN_OR_RETURN(const std::string_view type, string_field(part, "type", name, path));
    if (type != "Sequence") {
        parts.push_back(&part);
        return parts;
    }
    const Json& list = member(part, list_key);
    if (!list.is_array())
        return wrong_type(name, fmt::format("{}.{}", path, list_key), list, "a list");
    for (const Json& element : list) parts.push_back(&element);
    return parts;
}

Expected<void> check_normalizer(const Json& root, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(
        const auto parts, flatten(member(root, "normalizer"), "normalizers", name, "normalizer"));
    if (parts.empty()) return {};
    ESPALIER_ASSIGN_OR_RETURN(const auto type, string_field(*parts[0], "type", name, "normalizer"));
    return unsupported_type(name, "normalizer", type);
}

// A literal as a pattern: every ASCII character that could mean something is escaped.
std::string escaped_literal(std::string_view literal) {
    std::string pattern;
    for (const char c : literal) {
        if (std::string_view(R"(\^$.|?*+()[]{})").find(c) != std::string_view::npos)
            pattern.push_back('\\');
        pattern.push_back(c);
    }
    return pattern;
}

Expected<SplitStep> read_split(const Json& part, std::string_view name, const std::string& path) {
    ESPALIER_ASSIGN_OR_RETURN(const auto behavior, string_field(part, "behavior", name, path));
    if (behavior != "Isolated")
        return fail(ErrorKind::unsupported,
                    "{}: {}.behavior '{}' is not supported, only 'Isolated'", name, path, behavior);
    ESPALIER_ASSIGN_OR_RETURN(const bool invert, bool_field(part, "invert", false, name, path));
    if (invert)
        return fail(ErrorKind::unsupported, "{}: {}.invert = true is not supported", name, path);
    const Json& pattern = member(part, "pattern");
    const Json& literal = member(pattern, "String");
    const Json& regex = member(pattern, "Regex");
    const Json& text = literal.is_null() ? regex : literal;
    if (!text.is_string())
        return wrong_type(name, path + ".pattern", text, "{\"Regex\": …} or {\"String\": …}");
    const auto& written = text.get_ref<const std::string&>();
    ESPALIER_ASSIGN_OR_RETURN(
        Regex compiled, Regex::compile(literal.is_null() ? written : escaped_literal(written),
                                       RegexDialect::oniguruma, fmt::format("{}: {}", name, path)));
    return SplitStep{.regex = std::move(compiled)};
}

// Digits asks Rust's char::is_numeric, not a regex engine: N of Unicode 17 (tokenizers 0.23). What
// PCRE2 10.42 does not know of it is spelled out, so this step needs no stand-ins.
constexpr std::string_view kNumeric =
    R"([\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{11DE0}-\x{11DE9}\x{11F50}-\x{11F59})"
    R"(\x{16130}-\x{16139}\x{16D70}-\x{16D79}\x{16FF4}-\x{16FF6}\x{1CCF0}-\x{1CCF9}\x{1D2C0}-\x{1D2D3})"
    R"(\x{1E4F0}-\x{1E4F9}\x{1E5F1}-\x{1E5FA}])";

Expected<SplitStep> read_digits(const Json& part, std::string_view name, const std::string& path) {
    ESPALIER_ASSIGN_OR_RETURN(const bool individual,
                              bool_field(part, "individual_digits", false, name, path));
    ESPALIER_ASSIGN_OR_RETURN(Regex compiled,
                              Regex::compile(fmt::format("{}{}", kNumeric, individual ? "" : "+"),
                                             RegexDialect::oniguruma, name));
    return SplitStep{.regex = std::move(compiled), .without_stand_ins = true};
}

Expected<void> read_byte_level(const Json& part, std::string_view name, const std::string& path,
                               PreTokenizer& out) {
    // The library that defines the format has no default for it.
    if (member(part, "add_prefix_space").is_null())
        return fail(ErrorKind::invalid, "{}: {}.add_prefix_space is missing", name, path);
    ESPALIER_ASSIGN_OR_RETURN(out.add_prefix_space,
                              bool_field(part, "add_prefix_space", true, name, path));
    ESPALIER_ASSIGN_OR_RETURN(const bool use_regex,
                              bool_field(part, "use_regex", true, name, path));
    out.prefix_before_step = out.steps.size();
    if (!use_regex) return {};
    ESPALIER_ASSIGN_OR_RETURN(Regex compiled,
                              Regex::compile(kGpt2Pattern, RegexDialect::oniguruma, name));
    out.steps.push_back({.regex = std::move(compiled)});
    return {};
}

}  // namespace

Expected<PreTokenizer> read_pre_tokenizer(const Json& root, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const auto parts, flatten(member(root, "pre_tokenizer"),
                                                        "pretokenizers", name, "pre_tokenizer"));
    if (parts.size() > kMaxSteps)
        return fail(ErrorKind::exhausted,
                    "{}: pre_tokenizer has {} steps, more than the limit of {}", name, parts.size(),
                    kMaxSteps);
    PreTokenizer pre_tokenizer;
    bool byte_level = false;
    for (std::size_t index = 0; index < parts.size(); ++index) {
        const std::string path = fmt::format("pre_tokenizer[{}]", index);
        ESPALIER_ASSIGN_OR_RETURN(const auto type, string_field(*parts[index], "type", name, path));
        if (byte_level)
            return fail(ErrorKind::unsupported,
                        "{}: {} of type '{}' after ByteLevel is not supported", name, path, type);
        if (type == "Split") {
            ESPALIER_ASSIGN_OR_RETURN(SplitStep step, read_split(*parts[index], name, path));
            pre_tokenizer.steps.push_back(std::move(step));
        } else if (type == "Digits") {
            ESPALIER_ASSIGN_OR_RETURN(SplitStep step, read_digits(*parts[index], name, path));
            pre_tokenizer.steps.push_back(std::move(step));
        } else if (type == "ByteLevel") {
            ESPALIER_RETURN_IF_ERROR(read_byte_level(*parts[index], name, path, pre_tokenizer));
            byte_level = true;
        } else {
            return unsupported_type(name, path, type);
        }
    }
    if (!byte_level)
        return fail(ErrorKind::unsupported,
                    "{}: pre_tokenizer has no ByteLevel step; only byte-level BPE is supported",
                    name);
    return pre_tokenizer;
}

namespace {

// single: [{"SpecialToken": {"id": "<bos>", …}}, {"Sequence": {"id": "A", …}}], the bos being
// optional.
Expected<std::optional<std::string>> read_template(const Json& part, std::string_view name,
                                                   const std::string& path) {
    const Json& single = member(part, "single");
    if (!single.is_array()) return wrong_type(name, path + ".single", single, "a list");
    std::optional<std::string> bos;
    bool text_seen = false;
    for (const Json& element : single) {
        if (!member(element, "Sequence").is_null() && !text_seen) {
            text_seen = true;
            continue;
        }
        if (text_seen || bos)
            return fail(ErrorKind::unsupported,
                        "{}: {}.single adds more than one token before the text", name, path);
        ESPALIER_ASSIGN_OR_RETURN(const auto id, string_field(member(element, "SpecialToken"), "id",
                                                              name, path + ".single[]"));
        bos = std::string(id);
    }
    return bos;
}

Expected<std::optional<std::string>> read_post_processor(const Json& root, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const auto parts, flatten(member(root, "post_processor"),
                                                        "processors", name, "post_processor"));
    std::optional<std::string> bos;
    for (std::size_t index = 0; index < parts.size(); ++index) {
        const std::string path = fmt::format("post_processor[{}]", index);
        ESPALIER_ASSIGN_OR_RETURN(const auto type, string_field(*parts[index], "type", name, path));
        if (type == "ByteLevel") continue;  // moves offsets only
        if (type != "TemplateProcessing" || bos) return unsupported_type(name, path, type);
        ESPALIER_ASSIGN_OR_RETURN(bos, read_template(*parts[index], name, path));
    }
    return bos;
}

Expected<void> check_decoder(const Json& root, std::string_view name) {
    ESPALIER_ASSIGN_OR_RETURN(const auto parts,
                              flatten(member(root, "decoder"), "decoders", name, "decoder"));
    if (parts.size() != 1)
        return fail(ErrorKind::unsupported, "{}: decoder has {} steps, expected one ByteLevel",
                    name, parts.size());
    ESPALIER_ASSIGN_OR_RETURN(const auto type, string_field(*parts[0], "type", name, "decoder"));
    if (type != "ByteLevel") return unsupported_type(name, "decoder", type);
    return {};
}

}  // namespace

Expected<Pipeline> read_pipeline(const Json& root, std::string_view name) {
    Pipeline pipeline;
    ESPALIER_RETURN_IF_ERROR(check_normalizer(root, name));
    ESPALIER_ASSIGN_OR_RETURN(pipeline.pre_tokenizer, read_pre_tokenizer(root, name));
    ESPALIER_ASSIGN_OR_RETURN(pipeline.bos_token, read_post_processor(root, name));
    ESPALIER_RETURN_IF_ERROR(check_decoder(root, name));
    return pipeline;
}

}  // namespace espalier::text
