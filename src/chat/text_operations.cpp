// SPDX-License-Identifier: Apache-2.0
#include "chat/text_operations.hpp"

#include <string.h>

#include <algorithm>

#include "text/utf8.hpp"

namespace espalier::chat {
namespace {

bool continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

std::size_t next_code_point(std::string_view bytes, std::size_t at) {
    return at + text::utf8_length(static_cast<unsigned char>(bytes[at]));
}

std::size_t previous_code_point(std::string_view bytes, std::size_t at) {
    do --at;
    while (continues(bytes[at]));
    return at;
}

// The byte offset of each code point, and the length at the end.
std::vector<std::size_t> code_point_offsets(std::string_view bytes) {
    std::vector<std::size_t> offsets;
    for (std::size_t at = 0; at < bytes.size(); at = next_code_point(bytes, at))
        offsets.push_back(at);
    offsets.push_back(bytes.size());
    return offsets;
}

bool is_space_at(std::string_view bytes, std::size_t at) {
    return text::is_python_space(text::code_point_at(bytes, at));
}

std::vector<Text> split_at_space(const Text& text, std::int64_t splits) {
    const std::string_view bytes = text.bytes();
    const auto skip = [&](std::size_t at, bool space) {
        while (at < bytes.size() && is_space_at(bytes, at) == space)
            at = next_code_point(bytes, at);
        return at;
    };
    std::vector<Text> parts;
    std::size_t at = skip(0, true);
    while (at < bytes.size()) {
        if (splits >= 0 && parts.size() == static_cast<std::size_t>(splits)) {
            parts.push_back(text.slice(at, bytes.size()));
            break;
        }
        const std::size_t end = skip(at, false);
        parts.push_back(text.slice(at, end));
        at = skip(end, true);
    }
    return parts;
}

void require_separator(const Text& separator) {
    if (separator.empty()) fail_template(ErrorKind::invalid, "empty separator");
}

// The positions of `needle` that do not overlap, from the left, at most `limit` (negative: all).
std::vector<std::size_t> occurrences(std::string_view bytes, std::string_view needle,
                                     std::int64_t limit, Budget& budget) {
    std::vector<std::size_t> found;
    for (std::size_t at = 0; limit < 0 || found.size() < static_cast<std::size_t>(limit);) {
        at = find_text(bytes, needle, at, budget);
        if (at == std::string_view::npos) break;
        found.push_back(at);
        at += needle.size();
    }
    return found;
}

std::vector<Text> cut(const Text& text, std::span<const std::size_t> places, std::size_t width) {
    std::vector<Text> parts;
    std::size_t from = 0;
    for (const std::size_t place : places) {
        parts.push_back(text.slice(from, place));
        from = place + width;
    }
    parts.push_back(text.slice(from, text.size()));
    return parts;
}

// Python puts `new_text` before every code point and at the end when nothing is to be replaced.
Text interleave(const Text& text, const Text& new_text, std::int64_t count, Budget& budget) {
    const auto offsets = code_point_offsets(text.bytes());
    std::size_t times = offsets.size();
    if (count >= 0) times = std::min(times, static_cast<std::size_t>(count));
    budget.step(times);
    budget.touch(times * new_text.size());
    Text out;
    std::size_t from = 0;
    for (std::size_t i = 0; i < times; ++i) {
        out.append_slice(text, from, offsets[i]);
        out.append(new_text);
        from = offsets[i];
    }
    out.append_slice(text, from, text.size());
    return out;
}

char with_case(char c, bool upper) {
    if (upper && c >= 'a' && c <= 'z') return static_cast<char>(c - 'a' + 'A');
    if (!upper && c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
    return c;
}

}  // namespace

std::size_t code_points(std::string_view bytes) {
    return static_cast<std::size_t>(
        std::ranges::count_if(bytes, [](char byte) { return !continues(byte); }));
}

SliceBounds slice_bounds(std::size_t length, std::optional<std::int64_t> begin,
                         std::optional<std::int64_t> end, std::int64_t step) {
    if (step == 0) fail_template(ErrorKind::invalid, "slice step cannot be zero");
    const auto size = static_cast<std::int64_t>(length);
    const std::int64_t lowest = step > 0 ? 0 : -1;
    const std::int64_t highest = step > 0 ? size : size - 1;
    const auto place = [&](std::optional<std::int64_t> index, std::int64_t otherwise) {
        if (!index) return otherwise;
        if (*index < 0) return *index < -size ? lowest : std::max(lowest, *index + size);
        return std::min(*index, highest);
    };
    const std::int64_t from = place(begin, step > 0 ? lowest : highest);
    const std::int64_t to = place(end, step > 0 ? highest : lowest);
    if (step > 0 ? to <= from : to >= from) return {.begin = from, .count = 0, .step = step};
    // |step| may be as large as it likes: the distance is at most `size`.
    const std::int64_t distance = step > 0 ? to - from : from - to;
    const auto stride = step > 0 ? static_cast<std::uint64_t>(step)
                                 : std::uint64_t{0} - static_cast<std::uint64_t>(step);
    const auto count = (static_cast<std::uint64_t>(distance) - 1) / stride + 1;
    return {.begin = from, .count = static_cast<std::int64_t>(count), .step = step};
}

Text slice_text(const Text& text, const SliceBounds& bounds, Budget& budget) {
    budget.touch(text.size());
    if (bounds.count == 0) return {};
    const auto offsets = code_point_offsets(text.bytes());
    const auto at = [&](std::int64_t index) { return offsets[static_cast<std::size_t>(index)]; };
    if (bounds.step == 1) return text.slice(at(bounds.begin), at(bounds.begin + bounds.count));
    budget.step(static_cast<std::size_t>(bounds.count));
    Text out;
    std::int64_t index = bounds.begin;
    for (std::int64_t i = 0;; index += bounds.step) {
        out.append_slice(text, at(index), at(index + 1));
        if (++i == bounds.count) return out;
    }
}

std::size_t find_text(std::string_view text, std::string_view needle, std::size_t from,
                      Budget& budget) {
    if (from > text.size()) return std::string_view::npos;
    if (needle.empty()) return from;
    budget.step();
    // glibc's memmem needs linear time whatever the needle, string_view::find does not.
    const void* found =
        memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
    const std::size_t at =
        found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data())
              : std::string_view::npos;
    budget.touch((found ? at + needle.size() : text.size()) - from);
    return at;
}

Text strip_text(const Text& text, const Text* characters, Side side, Budget& budget) {
    budget.touch(text.size());
    const std::string_view bytes = text.bytes();
    std::vector<std::uint32_t> set;
    if (characters) {
        const std::string_view chosen = characters->bytes();
        for (std::size_t at = 0; at < chosen.size(); at = next_code_point(chosen, at))
            set.push_back(text::code_point_at(chosen, at));
        std::ranges::sort(set);
    }
    const auto goes = [&](std::size_t at) {
        if (!characters) return is_space_at(bytes, at);
        return std::ranges::binary_search(set, text::code_point_at(bytes, at));
    };
    std::size_t begin = 0;
    std::size_t end = bytes.size();
    if (side != Side::right)
        while (begin < end && goes(begin)) begin = next_code_point(bytes, begin);
    if (side != Side::left)
        while (end > begin && goes(previous_code_point(bytes, end)))
            end = previous_code_point(bytes, end);
    return text.slice(begin, end);
}

std::vector<Text> split_text(const Text& text, const Text* separator, std::int64_t splits,
                             Budget& budget) {
    budget.touch(text.size());
    if (!separator) return split_at_space(text, splits);
    require_separator(*separator);
    return cut(text, occurrences(text.bytes(), separator->bytes(), splits, budget),
               separator->size());
}

std::vector<Text> split_text_from_right(const Text& text, const Text& separator,
                                        std::int64_t splits, Budget& budget) {
    budget.touch(text.size());
    require_separator(separator);
    // rfind's time is the product of both lengths.
    if (separator.size() > 256)
        fail_template(ErrorKind::unsupported, "rsplit at {} bytes, more than 256",
                      separator.size());
    const std::string_view bytes = text.bytes();
    std::vector<std::size_t> places;
    std::size_t end = bytes.size();
    while ((splits < 0 || places.size() < static_cast<std::size_t>(splits)) &&
           end >= separator.size()) {
        budget.step();
        const std::size_t at = bytes.substr(0, end).rfind(separator.bytes());
        budget.touch((end - (at == std::string_view::npos ? 0 : at)) * separator.size());
        if (at == std::string_view::npos) break;
        places.push_back(at);
        end = at;
    }
    std::ranges::reverse(places);
    return cut(text, places, separator.size());
}

Text replace_text(const Text& text, const Text& old_text, const Text& new_text, std::int64_t count,
                  Budget& budget) {
    budget.touch(text.size());
    if (old_text.empty()) return interleave(text, new_text, count, budget);
    const auto places = occurrences(text.bytes(), old_text.bytes(), count, budget);
    budget.touch(places.size() * new_text.size());
    Text out;
    std::size_t from = 0;
    for (const std::size_t place : places) {
        out.append_slice(text, from, place);
        out.append(new_text);
        from = place + old_text.size();
    }
    out.append_slice(text, from, text.size());
    return out;
}

Text change_case(const Text& text, Case to, Budget& budget) {
    budget.touch(text.size());
    Text out;
    text.for_each_run([&](std::string_view run, bool is_content) {
        std::string changed;
        for (const char c : run) {
            if (static_cast<unsigned char>(c) >= 0x80)
                fail_template(ErrorKind::unsupported,
                              "changing the case of letters outside ASCII is not supported");
            const bool first = out.empty() && changed.empty();
            changed += with_case(c, to == Case::upper || (to == Case::capitalized && first));
        }
        out.append(changed, is_content);
    });
    return out;
}

}  // namespace espalier::chat
