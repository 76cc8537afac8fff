// SPDX-License-Identifier: Apache-2.0
// One event of each kind with every field set, and random ones, for the tests of lines and files.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "support/identities.hpp"
#include "trace/line.hpp"
#include "trace/reader.hpp"
#include "trace/sink.hpp"

namespace espalier::trace {

inline Header sample_header() {
    Header header;
    header.version = "0.1.0";
    header.model = {"tiny \"quoted\"", "models/tiny"};
    header.identity = test::sample_identity();
    header.threads = 3;
    header.settings.page_count = 65;
    header.settings.max_model_len = 1024;
    header.settings.max_rows = 8;
    header.settings.max_step_tokens = 1024;
    header.settings.max_step_gather = 512;
    header.settings.max_step_splits = 64;
    header.settings.prefill_segment = 256;
    header.settings.decompressed_keys = 2048;
    header.settings.reserve_windows = true;
    header.settings.hash_seed = ~0ull;
    header.settings.grant = Grant::everything;
    header.settings.drafters = {"ngram", "mtp"};
    return header;
}

// A value for every parameter that is not its default.
struct SampleParameters {
    void operator()(const accept::Parameter& parameter, float& value) const {
        value = static_cast<float>(0.7 * parameter.usual_least + 0.3 * parameter.usual_most);
    }
    void operator()(const accept::Parameter&, std::int64_t& value) const { value = 40; }
    void operator()(const accept::Parameter&, std::uint64_t& value) const { value = ~0ull; }
    void operator()(const accept::Parameter&,
                    std::vector<accept::SamplingOptions::Bias>& value) const {
        value = {{17, -12.5f}};
    }
};

inline Submission sample_submission() {
    Submission submission;
    submission.request = 4;
    submission.request_id = "their-4";
    submission.traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    submission.choices = 2;
    submission.time = 500;
    submission.priority = -3;
    submission.deadline = 900'000;
    submission.salt = 1ull << 63;
    submission.speculate = false;
    submission.draft_depth = 6;
    submission.draft_width = 2;
    submission.draft_nodes = 9;
    submission.logprobs = false;
    submission.forced_output = {3, 4};
    submission.prompt = {5, 6, 7};
    accept::SamplingOptions::parameters(SampleParameters{}, submission.sampling);
    submission.output = {.eos_token_ids = {1},
                         .ignore_eos = true,
                         .stop_token_ids = {9, 10},
                         .stop = {"\n\n", "\"}"},
                         .include_stop = true,
                         .skip_special_tokens = false,
                         .min_tokens = 2,
                         .max_tokens = 64,
                         .top_logprobs = 3,
                         .prompt_top_logprobs = 2};
    submission.grammar = {.kind = "json_schema",
                          .text = R"({"type": "object"})",
                          .choices = {"a", "b"},
                          .strict = false,
                          .any_whitespace = false};
    submission.reasoning = {.end_token_ids = {11, 12}, .open = false, .budget = 100};
    return submission;
}

inline Step sample_step() {
    Step step;
    step.number = 12;
    step.begin = 1'000;
    step.unreserved = true;
    step.rows = {{4, 128, 3, Form::absorbed, Mask::tree, 3, 3},
                 {5, 0, 64, Form::decompressed, Mask::causal, 0, 0}};
    step.trees = {{4, {7, 8, 9, 9}, {-1, 0, 0, 1}, {0, 1, 3, 2}, {0, 0, 1, 1}, {0, 0, 1, 2}}};
    step.outcomes = {{4, {0, 2}, {9, 3}}};
    step.ended = {{4, Reason::stop_token, 9, 17}};
    step.failure = "no \"memory\"";
    step.pages = {50, 10, 4};
    step.queue = {1, 300, 1, 1};
    step.times = {.offer = 1,
                  .draft = 2,
                  .plan = 3,
                  .build = 4,
                  .forward = 500,
                  .sample = 60,
                  .commit = 8,
                  .walk = 7,
                  .mask = 6,
                  .extend = 5,
                  .advance = 9,
                  .emit = 10,
                  .device = DeviceTimes{.model = 480, .sampling = 15}};
    return step;
}

inline std::vector<Event> sample_events() {
    Submission plain;
    plain.request = 6;
    plain.time = 700;
    plain.prompt = {1};
    plain.output.max_tokens = 1;
    return {sample_submission(), sample_step(), plain, Cancellation{5, 2'000}, Step{}};
}

inline std::string file_of(const Header& header, const std::vector<Event>& events) {
    std::string text;
    append_line(text, header);
    for (const Event& event : events) append_line(text, event);
    return text;
}

inline Expected<Reader> read_text(const std::string& text) {
    return Reader::read(std::make_unique<std::istringstream>(text), "run.jsonl");
}

// The events of a file up to its end, or the first error.
inline Expected<std::vector<Event>> events_of(const std::string& text) {
    ESPALIER_ASSIGN_OR_RETURN(Reader reader, read_text(text));
    std::vector<Event> events;
    for (;;) {
        ESPALIER_ASSIGN_OR_RETURN(std::optional<Event> event, reader.next());
        if (!event) return events;
        events.push_back(std::move(*event));
    }
}

inline std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
}

inline std::string joined(const std::vector<std::string>& lines) {
    std::string text;
    for (const std::string& line : lines) text += line + "\n";
    return text;
}

// Some small thing about the text is changed: a byte, a digit, a piece left out or doubled, a line
// moved, the end cut off.
inline std::string mutated(const std::string& text, Random& random) {
    const auto place = [&](std::size_t size) {
        return random.bits() % std::max<std::size_t>(size, 1);
    };
    std::string out = text;
    if (out.empty()) return out;
    switch (random.between(0, 6)) {
        case 0:
            out[place(out.size())] = static_cast<char>(random.between(0, 255));
            break;
        case 1: {  // a digit
            const std::size_t at = out.find_first_of("0123456789", place(out.size()));
            if (at != std::string::npos) out[at] = static_cast<char>('0' + random.between(0, 9));
            break;
        }
        case 2:
            out.erase(place(out.size()), 1 + place(12));
            break;
        case 3: {
            const std::size_t at = place(out.size());
            out.insert(at, out.substr(at, 1 + place(12)));
            break;
        }
        case 4: {
            static const std::vector<std::string> pieces = {"-",
                                                            "1e999",
                                                            "18446744073709551616",
                                                            "null",
                                                            "[]",
                                                            "{}",
                                                            "\"",
                                                            "[[[[[[[[[[[[",
                                                            "-1",
                                                            "2147483648",
                                                            "9007199254740993",
                                                            ",",
                                                            "\n",
                                                            "0.5"};
            out.insert(place(out.size()), pieces[place(pieces.size())]);
            break;
        }
        case 5: {
            std::vector<std::string> lines = lines_of(out);
            const std::size_t from = place(lines.size()), to = place(lines.size());
            if (random.chance(0.3))
                lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(from));
            else if (random.chance(0.5))
                lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(to), lines[from]);
            else
                std::swap(lines[from], lines[to]);
            return joined(lines);
        }
        default:
            out.resize(place(out.size()));
    }
    return out;
}

// Keeps what is written.
class StringSink final : public Sink {
  public:
    explicit StringSink(std::string& out) : out_(out) {}
    Expected<void> write(std::string_view bytes) override {
        out_ += bytes;
        return {};
    }

  private:
    std::string& out_;
};

}  // namespace espalier::trace
