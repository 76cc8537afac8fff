// SPDX-License-Identifier: Apache-2.0
#include "chat/print.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/utf8.hpp"

namespace espalier::chat {
namespace {

// The shortest decimal digits that give the number back, d.ddd × 10^exponent.
struct Decimal {
    std::string digits;
    int exponent = 0;
};

Decimal shortest_decimal(double magnitude) {
    char buffer[64];
    const auto [end, error] =
        std::to_chars(buffer, buffer + sizeof buffer, magnitude, std::chars_format::scientific);
    const std::string_view text(buffer, static_cast<std::size_t>(end - buffer));
    const std::size_t e = text.find('e');
    Decimal decimal{.digits = std::string(text.substr(0, e))};
    std::erase(decimal.digits, '.');
    decimal.exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
    return decimal;
}

// Escapes one text run by run, so that what came from the request stays known.
template <typename Escape>
void append_escaped(Text& out, const Text& text, Escape&& escape) {
    text.for_each_run([&](std::string_view run, bool is_content) {
        std::string escaped;
        for (std::size_t at = 0; at < run.size();) {
            const std::size_t next = at + text::utf8_length(static_cast<unsigned char>(run[at]));
            escape(run.substr(at, next - at), escaped);
            at = next;
        }
        out.append(escaped, is_content);
    });
}

void escape_repr(std::string_view character, char quote, std::string& out) {
    const auto byte = static_cast<unsigned char>(character[0]);
    if (byte >= 0x80)
        fail_template(ErrorKind::unsupported,
                      "printing a list or dict with characters outside ASCII is not supported; "
                      "templates use tojson for that");
    if (character[0] == quote || character[0] == '\\') {
        out += '\\';
        out += character;
    } else if (character == "\n") {
        out += "\\n";
    } else if (character == "\r") {
        out += "\\r";
    } else if (character == "\t") {
        out += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
        out += fmt::format("\\x{:02x}", byte);
    } else {
        out += character;
    }
}

void escape_json(std::string_view character, bool ensure_ascii, std::string& out) {
    const auto byte = static_cast<unsigned char>(character[0]);
    if (byte >= 0x80) {
        if (!ensure_ascii) {
            out += character;
            return;
        }
        const std::uint32_t code = text::code_point_at(character, 0);
        if (code < 0x10000) {
            out += fmt::format("\\u{:04x}", code);
        } else {
            out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                               0xDC00 + ((code - 0x10000) & 0x3FF));
        }
        return;
    }
    constexpr std::string_view kNamed = "\"\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\"\\nrtfb";
    if (const std::size_t named = kNamed.find(character[0]); named != std::string_view::npos) {
        out += '\\';
        out += kLetters[named];
    } else if (byte < 0x20) {
        out += fmt::format("\\u{:04x}", byte);
    } else {
        out += character;
    }
}

class Printer {
  public:
    explicit Printer(Budget& budget) : budget_(budget) {}

    void print(const Value& value, bool quoted) {
        budget_.step();
        if (const Text* text = value.text()) {
            if (quoted) {
                print_quoted(*text);
            } else {
                budget_.touch(text->size());
                out_.append(*text);
            }
        } else if (const List* list = value.list()) {
            print_list(value, *list);
        } else if (const Dict* dict = value.dict()) {
            print_dict(*dict);
        } else if (value.is_undefined()) {
            out_.append(quoted ? "Undefined" : "", false);
        } else {
            out_.append(print_scalar(value), false);
        }
    }
    Text take() { return std::move(out_); }

  private:
    static std::string print_scalar(const Value& value) {
        if (value.is_none()) return "None";
        if (const bool* found = value.get<bool>()) return *found ? "True" : "False";
        if (const Integer* found = value.get<Integer>()) return print_integer(*found);
        if (const double* found = value.get<double>()) return print_real(*found);
        fail_template(ErrorKind::unsupported, "printing a {} is not supported", value.type_name());
    }

    void print_quoted(const Text& text) {
        budget_.touch(2 * text.size());
        const bool single = text.bytes().find('\'') != std::string::npos;
        const bool doubled = text.bytes().find('"') != std::string::npos;
        const char quote = single && !doubled ? '"' : '\'';
        out_.append({&quote, 1}, false);
        append_escaped(out_, text, [&](std::string_view character, std::string& out) {
            escape_repr(character, quote, out);
        });
        out_.append({&quote, 1}, false);
    }

    void print_list(const Value& value, const List& list) {
        const bool tuple = list.kind == List::Kind::tuple;
        if (!tuple && list.kind != List::Kind::list)
            fail_template(ErrorKind::unsupported, "printing a {} is not supported",
                          value.type_name());
        out_.append(tuple ? "(" : "[", false);
        for (std::size_t i = 0; i < list.items.size(); ++i) {
            if (i > 0) out_.append(", ", false);
            print(list.items[i], true);
        }
        if (tuple && list.items.size() == 1) out_.append(",", false);
        out_.append(tuple ? ")" : "]", false);
    }

    void print_dict(const Dict& dict) {
        out_.append("{", false);
        for (std::size_t i = 0; i < dict.entries.size(); ++i) {
            if (i > 0) out_.append(", ", false);
            print_quoted(*dict.entries[i].key);
            out_.append(": ", false);
            print(dict.entries[i].value, true);
        }
        out_.append("}", false);
    }

    Budget& budget_;
    Text out_;
};

class JsonPrinter {
  public:
    JsonPrinter(const JsonStyle& style, Budget& budget) : style_(style), budget_(budget) {}

    void print(const Value& value, std::size_t level) {
        budget_.step();
        if (const Text* text = value.text()) {
            print_text(*text);
        } else if (const List* list = value.list()) {
            print_list(value, *list, level);
        } else if (const Dict* dict = value.dict()) {
            print_dict(*dict, level);
        } else {
            out_.append(print_scalar(value), false);
        }
    }
    Text take() { return std::move(out_); }

  private:
    static std::string print_scalar(const Value& value) {
        if (value.is_none()) return "null";
        if (const bool* found = value.get<bool>()) return *found ? "true" : "false";
        if (const Integer* found = value.get<Integer>()) return print_integer(*found);
        if (const double* found = value.get<double>()) {
            if (std::isnan(*found)) return "NaN";
            if (std::isinf(*found)) return *found > 0 ? "Infinity" : "-Infinity";
            return print_real(*found);
        }
        fail_template(ErrorKind::invalid, "tojson: a {} is not JSON serializable",
                      value.type_name());
    }

    void print_text(const Text& text) {
        budget_.touch(2 * text.size());
        out_.append("\"", false);
        append_escaped(out_, text, [&](std::string_view character, std::string& out) {
            escape_json(character, style_.ensure_ascii, out);
        });
        out_.append("\"", false);
    }

    void new_line(std::size_t level) {
        if (!style_.indented) return;
        budget_.touch(1 + level * style_.indent.size());
        out_.append("\n", false);
        for (std::size_t i = 0; i < level; ++i) out_.append(style_.indent, false);
    }
    void separate(std::size_t index, std::size_t level) {
        if (index > 0) append(style_.item_separator);
        new_line(level);
    }
    void append(const Text& text) {
        budget_.touch(text.size());
        out_.append(text);
    }

    void print_list(const Value& value, const List& list, std::size_t level) {
        if (list.kind != List::Kind::list && list.kind != List::Kind::tuple)
            fail_template(ErrorKind::invalid, "tojson: a {} is not JSON serializable",
                          value.type_name());
        out_.append("[", false);
        for (std::size_t i = 0; i < list.items.size(); ++i) {
            separate(i, level + 1);
            print(list.items[i], level + 1);
        }
        if (!list.items.empty()) new_line(level);
        out_.append("]", false);
    }

    void print_dict(const Dict& dict, std::size_t level) {
        std::vector<const Dict::Entry*> entries;
        for (const Dict::Entry& entry : dict.entries) entries.push_back(&entry);
        if (style_.sort_keys)
            std::ranges::sort(entries, {}, [](const Dict::Entry* entry) -> const std::string& {
                return entry->key->bytes();
            });
        out_.append("{", false);
        for (std::size_t i = 0; i < entries.size(); ++i) {
            separate(i, level + 1);
            print_text(*entries[i]->key);
            append(style_.key_separator);
            print(entries[i]->value, level + 1);
        }
        if (!entries.empty()) new_line(level);
        out_.append("}", false);
    }

    const JsonStyle& style_;
    Budget& budget_;
    Text out_;
};

}  // namespace

std::string print_integer(Integer value) { return fmt::format("{}", value); }

std::string print_real(double value) {
    if (std::isnan(value)) return "nan";
    const std::string sign = std::signbit(value) ? "-" : "";
    if (std::isinf(value)) return sign + "inf";
    const auto [digits, exponent] = shortest_decimal(std::fabs(value));
    const auto count = static_cast<int>(digits.size());
    if (exponent < -4 || exponent >= 16)
        return fmt::format("{}{}{}{}e{}{:02}", sign, digits[0], count > 1 ? "." : "",
                           digits.substr(1), exponent < 0 ? '-' : '+', std::abs(exponent));
    if (exponent < 0) return fmt::format("{}0.{:0>{}}{}", sign, "", -exponent - 1, digits);
    if (count <= exponent + 1) return fmt::format("{}{:0<{}}.0", sign, digits, exponent + 1);
    const auto whole = static_cast<std::size_t>(exponent + 1);
    return fmt::format("{}{}.{}", sign, digits.substr(0, whole), digits.substr(whole));
}

TextPtr print(const Value& value, Budget& budget) {
    if (const TextPtr* text = value.get<TextPtr>()) return *text;
    Printer printer(budget);
    printer.print(value, false);
    return std::make_shared<const Text>(printer.take());
}

Text print_json(const Value& value, const JsonStyle& style, Budget& budget) {
    JsonPrinter printer(style, budget);
    printer.print(value, 0);
    return printer.take();
}

}  // namespace espalier::chat
