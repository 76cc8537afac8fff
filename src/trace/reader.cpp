// SPDX-License-Identifier: Apache-2.0
#include "trace/reader.hpp"

#include <fstream>
#include <utility>

namespace espalier::trace {

Expected<Reader> Reader::open(const std::string& path) {
    auto file = std::make_unique<std::ifstream>(path, std::ios::binary);
    if (!*file) return fail(ErrorKind::io, "{}: cannot be opened for reading", path);
    return read(std::move(file), path);
}

Expected<Reader> Reader::read(std::unique_ptr<std::istream> in, std::string name) {
    Reader reader(std::move(in), std::move(name));
    ESPALIER_ASSIGN_OR_RETURN(const bool any, reader.read_line());
    if (!any) return fail(ErrorKind::invalid, "{}: the trace is empty", reader.name_);
    ESPALIER_ASSIGN_OR_RETURN(reader.header_, parse_header(reader.text_, reader.place()));
    return reader;
}

std::string Reader::place() const { return fmt::format("{}, line {}", name_, line_); }

Expected<bool> Reader::read_line() {
    text_.clear();
    terminated_ = false;
    std::streambuf& bytes = *in_->rdbuf();
    using Traits = std::streambuf::traits_type;
    for (auto next = bytes.sbumpc(); next != Traits::eof(); next = bytes.sbumpc()) {
        if (next == '\n') {
            terminated_ = true;
            break;
        }
        if (static_cast<std::int64_t>(text_.size()) == kMaxLineBytes)
            return fail(ErrorKind::invalid, "{}, line {}: longer than {} bytes", name_, line_ + 1,
                        kMaxLineBytes);
        text_.push_back(Traits::to_char_type(next));
    }
    if (!terminated_ && text_.empty()) return false;
    ++line_;
    return true;
}

Expected<std::optional<Event>> Reader::next() {
    if (ending_ != Ending::missing) return std::nullopt;
    ESPALIER_ASSIGN_OR_RETURN(const bool any, read_line());
    if (!any) return std::nullopt;
    auto event = parse_event(text_, place());
    // A line that ends in the middle is what a killed writer leaves.
    if (!event && !terminated_) return std::nullopt;
    if (!event) return tl::unexpected<Error>(std::move(event.error()));
    if (const End* end = std::get_if<End>(&*event)) {
        ESPALIER_RETURN_IF_ERROR(check_end(*end));
        ending_ = end->reason == Close::overflow ? Ending::overflow : Ending::finished;
        return std::nullopt;
    }
    counted_.submissions += std::holds_alternative<Submission>(*event) ? 1 : 0;
    counted_.cancellations += std::holds_alternative<Cancellation>(*event) ? 1 : 0;
    counted_.steps += std::holds_alternative<Step>(*event) ? 1 : 0;
    return std::optional<Event>(std::move(*event));
}

Expected<void> Reader::check_end(const End& end) {
    const auto count = [this](const char* what, std::int64_t said,
                              std::int64_t found) -> Expected<void> {
        if (said == found) return {};
        return fail(ErrorKind::invalid, "{}: the end line counts {} {}, but {} lines have one",
                    place(), said, what, found);
    };
    ESPALIER_RETURN_IF_ERROR(count("submissions", end.submissions, counted_.submissions));
    ESPALIER_RETURN_IF_ERROR(count("cancellations", end.cancellations, counted_.cancellations));
    ESPALIER_RETURN_IF_ERROR(count("steps", end.steps, counted_.steps));
    ESPALIER_ASSIGN_OR_RETURN(const bool more, read_line());
    if (!more) return {};
    return fail(ErrorKind::invalid, "{}: a line after the trace's end", place());
}

}  // namespace espalier::trace
