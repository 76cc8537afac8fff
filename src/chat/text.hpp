// SPDX-License-Identifier: Apache-2.0
// Text that knows which of its bytes a request wrote. Valid UTF-8; ranges begin and end between
// code points, ascend and do not meet.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer.hpp"

namespace espalier::chat {

using Range = text::ByteRange;

class Text {
  public:
    Text() = default;
    // Text of the template or of the model.
    explicit Text(std::string bytes) : bytes_(std::move(bytes)) {}
    // Text of the request: all of it is content.
    static Text content_of(std::string bytes) {
        Text text(std::move(bytes));
        if (!text.bytes_.empty()) text.content_.push_back({0, text.bytes_.size()});
        return text;
    }

    const std::string& bytes() const { return bytes_; }
    std::span<const Range> content() const { return content_; }
    bool empty() const { return bytes_.empty(); }
    std::size_t size() const { return bytes_.size(); }

    void append(std::string_view bytes, bool is_content);
    void append(const Text& other) { append_slice(other, 0, other.size()); }
    void append_slice(const Text& other, std::size_t begin, std::size_t end);
    Text slice(std::size_t begin, std::size_t end) const {
        Text part;
        part.append_slice(*this, begin, end);
        return part;
    }

    // Calls visit(bytes, is_content) for the runs of equal origin, in order.
    template <typename Visit>
    void for_each_run(Visit&& visit) const {
        const std::string_view all = bytes_;
        std::size_t at = 0;
        for (const Range range : content_) {
            if (range.begin > at) visit(all.substr(at, range.begin - at), false);
            visit(all.substr(range.begin, range.end - range.begin), true);
            at = range.end;
        }
        if (at < all.size()) visit(all.substr(at), false);
    }

    std::string take_bytes() && { return std::move(bytes_); }

  private:
    void add_range(Range range);

    std::string bytes_;
    std::vector<Range> content_;
};

}  // namespace espalier::chat
