// SPDX-License-Identifier: Apache-2.0
// Any bytes as a trace: refused with a message, or read to its end; what is read writes and reads
// back as itself, and its timeline is valid JSON.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "trace/chrome.hpp"
#include "trace/reader.hpp"

namespace {

using namespace espalier;

class StringSink final : public trace::Sink {
  public:
    Expected<void> write(std::string_view bytes) override {
        text += bytes;
        return {};
    }
    std::string text;
};

void check_timeline(const std::string& text) {
    auto reader = trace::Reader::read(std::make_unique<std::istringstream>(text), "fuzz");
    StringSink sink;
    if (reader && trace::write_chrome(*reader, sink) && !nlohmann::json::accept(sink.text))
        std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    auto reader = trace::Reader::read(std::make_unique<std::istringstream>(text), "fuzz");
    if (!reader) {
        if (reader.error().message.empty()) std::abort();
        return 0;
    }
    std::string line;
    append_line(line, reader->header());
    if (const auto again = trace::parse_header(line, "written");
        !again || !(*again == reader->header()))
        std::abort();
    for (;;) {
        const auto event = reader->next();
        if (!event && event.error().message.empty()) std::abort();
        if (!event || !*event) break;
        line.clear();
        append_line(line, **event);
        const auto again = trace::parse_event(line, "written");
        if (!again || !(*again == **event)) std::abort();
    }
    check_timeline(text);
    return 0;
}
