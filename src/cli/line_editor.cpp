// SPDX-License-Identifier: Apache-2.0
#include "cli/line_editor.hpp"

#include <fmt/format.h>
#include <locale.h>
#include <wchar.h>

#include <algorithm>
#include <utility>

#include "text/utf8.hpp"

namespace espalier::cli {
namespace {

constexpr char kEscape = '\x1b';
constexpr char kDelete = '\x7f';
constexpr std::size_t kMaxSequence = 16;
constexpr char32_t kLineEndPicture = U'⏎';

constexpr char control(char letter) { return static_cast<char>(letter & 0x1f); }

std::u32string points_of(std::string_view utf8) {
    std::string valid;
    text::append_valid_utf8(utf8, false, valid);
    std::u32string points;
    for (std::size_t at = 0; at < valid.size();
         at += text::utf8_length(static_cast<unsigned char>(valid[at])))
        points += static_cast<char32_t>(text::code_point_at(valid, at));
    return points;
}

std::string utf8_of(std::u32string_view points) {
    std::string utf8;
    for (const char32_t point : points) text::append_code_point(point, utf8);
    return utf8;
}

bool is_space(char32_t point) { return point == ' ' || point == '\n' || point == '\t'; }

// Character as a line shows it: line ends and tabs take one column.
char32_t picture_of(char32_t point) {
    if (point == '\n') return kLineEndPicture;
    return point == '\t' ? U' ' : point;
}

int width_of(std::u32string_view points) {
    int columns = 0;
    for (const char32_t point : points) columns += columns_of(picture_of(point));
    return columns;
}

}  // namespace

int columns_of(char32_t point) {
    // wcwidth() knows by the locale; this one is part of every glibc.
    static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    if (utf8 == nullptr || point < 0x7f) return 1;
    const locale_t before = uselocale(utf8);
    const int columns = wcwidth(static_cast<wchar_t>(point));
    uselocale(before);
    return std::max(0, columns);
}

LineEditor::LineEditor(std::vector<std::string> history) {
    for (const std::string& line : history) lines_.push_back(points_of(line));
    lines_.emplace_back();
    line_ = lines_.size() - 1;
}

std::string LineEditor::text() const { return utf8_of(text_); }

// ---- what the terminal sends --------------------------------------------------------------------

LineEditor::Event LineEditor::push(char byte) {
    if (state_ == State::escape) {
        on_escaped(byte);
        return Event::editing;
    }
    if (state_ == State::sequence) {
        sequence_ += byte;
        const bool is_last = byte >= '@' && byte <= '~';
        if (!is_last && sequence_.size() < kMaxSequence) return Event::editing;
        state_ = State::plain;
        on_sequence(std::exchange(sequence_, {}));
        return Event::editing;
    }
    if (byte == kEscape) {
        state_ = State::escape;
        utf8_.clear();
        return Event::editing;
    }
    const auto code = static_cast<unsigned char>(byte);
    if (code >= 0x20 && byte != kDelete) {
        on_text_byte(byte);
        return Event::editing;
    }
    utf8_.clear();
    if (!pasting_) return on_control(byte);
    if (byte == '\r' || byte == '\n') insert(U'\n');
    if (byte == '\t') insert(U'\t');
    return Event::editing;
}

LineEditor::Event LineEditor::on_control(char byte) {
    switch (byte) {
        case '\r':
        case '\n':
            return enter();
        case control('C'):
            return Event::cancelled;
        case control('D'):
            if (text_.empty()) return Event::ended;
            if (cursor_ < text_.size()) text_.erase(cursor_, right_of(cursor_) - cursor_);
            break;
        case control('L'):
            return Event::cleared;
        case control('A'):
            cursor_ = 0;
            break;
        case control('E'):
            cursor_ = text_.size();
            break;
        case control('B'):
            cursor_ = left_of(cursor_);
            break;
        case control('F'):
            cursor_ = right_of(cursor_);
            break;
        case control('P'):
            if (line_ > 0) recall(line_ - 1);
            break;
        case control('N'):
            if (line_ + 1 < lines_.size()) recall(line_ + 1);
            break;
        case control('K'):
            erase(cursor_, text_.size());
            break;
        case control('U'):
            erase(0, cursor_);
            break;
        case control('W'):
            erase(word_left(), cursor_);
            break;
        case control('Y'):
            for (const char32_t point : std::u32string(killed_)) insert(point);
            break;
        case control('H'):
        case kDelete: {
            const std::size_t from = left_of(cursor_);
            text_.erase(from, cursor_ - from);
            cursor_ = from;
            break;
        }
        default:
            break;
    }
    return Event::editing;
}

void LineEditor::on_escaped(char byte) {
    state_ = State::plain;
    if (byte == '[' || byte == 'O') {
        state_ = State::sequence;
        return;
    }
    if (pasting_) return;
    if (byte == 'b') cursor_ = word_left();
    if (byte == 'f') cursor_ = word_right();
    if (byte == 'd') erase(cursor_, word_right());
    if (byte == kDelete) erase(word_left(), cursor_);
    if (byte == '\r' || byte == '\n') insert(U'\n');
}

void LineEditor::on_sequence(const std::string& keys) {
    if (keys == "200~") pasting_ = true;
    if (keys == "201~") pasting_ = false;
    if (pasting_) return;
    if (keys == "A" && line_ > 0) recall(line_ - 1);
    if (keys == "B" && line_ + 1 < lines_.size()) recall(line_ + 1);
    if (keys == "C") cursor_ = right_of(cursor_);
    if (keys == "D") cursor_ = left_of(cursor_);
    if (keys == "1;5C" || keys == "1;3C") cursor_ = word_right();
    if (keys == "1;5D" || keys == "1;3D") cursor_ = word_left();
    if (keys == "H" || keys == "1~" || keys == "7~") cursor_ = 0;
    if (keys == "F" || keys == "4~" || keys == "8~") cursor_ = text_.size();
    if (keys == "3~" && cursor_ < text_.size()) text_.erase(cursor_, right_of(cursor_) - cursor_);
}

// Bytes that are no UTF-8 are dropped.
void LineEditor::on_text_byte(char byte) {
    const bool continues = (static_cast<unsigned char>(byte) & 0xc0u) == 0x80u;
    if (!continues) utf8_.clear();
    utf8_ += byte;
    if (utf8_.size() < text::utf8_length(static_cast<unsigned char>(utf8_.front()))) return;
    const std::string whole = std::exchange(utf8_, {});
    if (text::valid_utf8_prefix(whole) != whole.size()) return;
    const char32_t point = text::code_point_at(whole, 0);
    if (point >= 0xA0 || point < 0x80) insert(point);
}

LineEditor::Event LineEditor::enter() {
    if (!text_.ends_with(U'\\')) return Event::accepted;
    text_.back() = U'\n';
    cursor_ = text_.size();
    return Event::editing;
}

// ---- the line -----------------------------------------------------------------------------------

void LineEditor::insert(char32_t point) {
    if (text_.size() >= kMaxPoints) return;
    text_.insert(cursor_++, 1, point);
}

void LineEditor::erase(std::size_t from, std::size_t to) {
    if (from == to) return;
    killed_ = text_.substr(from, to - from);
    text_.erase(from, to - from);
    cursor_ = from;
}

// Changes of a line stay until the line is accepted.
void LineEditor::recall(std::size_t place) {
    lines_[line_] = text_;
    line_ = place;
    text_ = lines_[line_];
    cursor_ = text_.size();
}

// Combining marks belong to the letter before them.
std::size_t LineEditor::left_of(std::size_t place) const {
    if (place == 0) return 0;
    --place;
    while (place > 0 && columns_of(picture_of(text_[place])) == 0) --place;
    return place;
}

std::size_t LineEditor::right_of(std::size_t place) const {
    if (place == text_.size()) return place;
    ++place;
    while (place < text_.size() && columns_of(picture_of(text_[place])) == 0) ++place;
    return place;
}

std::size_t LineEditor::word_left() const {
    std::size_t place = cursor_;
    while (place > 0 && is_space(text_[place - 1])) --place;
    while (place > 0 && !is_space(text_[place - 1])) --place;
    return place;
}

std::size_t LineEditor::word_right() const {
    std::size_t place = cursor_;
    while (place < text_.size() && is_space(text_[place])) ++place;
    while (place < text_.size() && !is_space(text_[place])) ++place;
    return place;
}

std::string LineEditor::draw(std::string_view prompt, int columns) const {
    const int prompt_width = width_of(points_of(prompt));
    // One column stays free: a cursor behind the last one would wrap.
    const int room = std::max(4, columns - prompt_width - 1);
    const std::u32string_view all = text_;
    std::size_t from = cursor_;
    int before_cursor = 0;
    while (from > 0 && before_cursor + columns_of(picture_of(all[from - 1])) <= room)
        before_cursor += columns_of(picture_of(all[--from]));
    std::size_t to = from;
    int width = 0;
    while (to < all.size() && width + columns_of(picture_of(all[to])) <= room)
        width += columns_of(picture_of(all[to++]));
    std::u32string shown(all.substr(from, to - from));
    std::ranges::transform(shown, shown.begin(), picture_of);
    const int cursor = prompt_width + before_cursor;
    const std::string place = cursor > 0 ? fmt::format("\x1b[{}C", cursor) : std::string();
    return fmt::format("\r{}{}\x1b[K\r{}", prompt, utf8_of(shown), place);
}

}  // namespace espalier::cli
