// SPDX-License-Identifier: Apache-2.0
#include "cli/serve_load.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "base/json.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

// About four letters a token, as English has them; whole words.
std::string cut_text(const std::string& text, std::int64_t tokens, std::mt19937_64& random) {
    const auto size = std::min(static_cast<std::size_t>(4 * tokens), text.size());
    std::size_t begin = std::uniform_int_distribution<std::size_t>(0, text.size() - size)(random);
    const std::size_t space = text.find(' ', begin);
    if (begin > 0 && space != std::string::npos && space + size <= text.size()) begin = space + 1;
    const auto continues = [&](std::size_t at) {
        return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
    };
    while (continues(begin)) ++begin;
    std::size_t end = std::min(begin + size, text.size());
    while (continues(end)) ++end;
    return text.substr(begin, end - begin);
}

// The sentence of an error body, or its first bytes.
std::string error_of(int status, const std::string& body) {
    const Json json = Json::parse(body, nullptr, false);
    if (json.is_object() && json.contains("error") && json["error"].is_object() &&
        json["error"].value("message", Json()).is_string())
        return fmt::format("{}: {}", status, json["error"]["message"].get<std::string>());
    return fmt::format("{}: {}", status, body.substr(0, 200));
}

// Reads one stream of completion chunks and notes when its pieces came.
class StreamWatch {
  public:
    StreamWatch(ServeOutcome& outcome, Clock::time_point sent)
        : outcome_(outcome), sent_(sent), last_(sent) {}

    Expected<void> take(const std::string& data) {
        if (data == "[DONE]") return {};
        ESPALIER_ASSIGN_OR_RETURN(const Json chunk, parse_json(data, "a chunk"));
        if (!chunk.is_object()) return fail(ErrorKind::invalid, "a chunk is no object");
        if (chunk.contains("error")) return fail(ErrorKind::io, "{}", chunk["error"].dump());
        if (const Json usage = chunk.value("usage", Json()); usage.is_object()) {
            outcome_.input_tokens = usage.value("prompt_tokens", std::int64_t{0});
            outcome_.output_tokens = usage.value("completion_tokens", std::int64_t{0});
        }
        const Json choices = chunk.value("choices", Json::array());
        if (!choices.is_array() || choices.empty() || !choices[0].is_object()) return {};
        const Json text = choices[0].value("text", Json());
        if (!text.is_string() || text.get_ref<const std::string&>().empty()) return {};
        const auto now = Clock::now();
        ++pieces_;
        if (pieces_ == 1) {
            outcome_.first_token = seconds_between(sent_, now);
        } else {
            outcome_.gaps.push_back(seconds_between(last_, now));
        }
        last_ = now;
        return {};
    }
    std::int64_t pieces() const { return pieces_; }

  private:
    ServeOutcome& outcome_;
    Clock::time_point sent_;
    Clock::time_point last_;
    std::int64_t pieces_ = 0;
};

Expected<void> send_one(const ServeLoad& load, const std::string& body, ServeOutcome& outcome) {
    const auto sent = Clock::now();
    ESPALIER_ASSIGN_OR_RETURN(
        HttpAnswer answer,
        HttpAnswer::of(load.url,
                       {.path = "/v1/completions", .body = body, .api_key = load.api_key}));
    if (answer.status() != 200) {
        ESPALIER_ASSIGN_OR_RETURN(const std::string text, answer.read_all());
        return fail(ErrorKind::io, "{}", error_of(answer.status(), text));
    }
    StreamWatch watch(outcome, sent);
    EventCutter cutter;
    while (true) {
        ESPALIER_ASSIGN_OR_RETURN(const auto bytes, answer.read_some());
        if (!bytes) break;
        for (const std::string& event : cutter.push(*bytes))
            ESPALIER_RETURN_IF_ERROR(watch.take(event));
    }
    outcome.whole = seconds_between(sent, Clock::now());
    if (watch.pieces() == 0) return fail(ErrorKind::io, "the answer has no text");
    if (outcome.output_tokens == 0) outcome.output_tokens = watch.pieces();
    return {};
}

Expected<std::string> first_model(const ServeLoad& load) {
    ESPALIER_ASSIGN_OR_RETURN(
        HttpAnswer answer,
        HttpAnswer::of(
            load.url,
            {.method = "GET", .path = "/v1/models", .body = {}, .api_key = load.api_key}));
    ESPALIER_ASSIGN_OR_RETURN(const std::string body, answer.read_all());
    if (answer.status() != 200)
        return fail(ErrorKind::io, "/v1/models: {}", error_of(answer.status(), body));
    const Json json = Json::parse(body, nullptr, false);
    if (!json.is_object() || !json.value("data", Json()).is_array() || json["data"].empty() ||
        !json["data"][0].value("id", Json()).is_string())
        return fail(ErrorKind::invalid, "/v1/models lists no model");
    return json["data"][0]["id"].get<std::string>();
}

}  // namespace

std::vector<double> arrival_times(const ServeLoad& load) {
    std::vector<double> times(static_cast<std::size_t>(load.requests), 0.0);
    if (load.rate <= 0) return times;
    std::mt19937_64 random(load.seed);
    std::gamma_distribution<double> wait(load.burstiness, 1 / (load.rate * load.burstiness));
    double time = 0;
    for (double& one : times) one = time += wait(random);
    return times;
}

std::vector<std::string> request_bodies(const ServeLoad& load, const std::string& model) {
    std::mt19937_64 random(load.seed + 1);
    std::uniform_int_distribution<std::int64_t> token(
        100, std::max<std::int64_t>(load.vocabulary, 101) - 1);
    std::vector<std::string> bodies;
    for (std::int64_t i = 0; i < load.requests; ++i) {
        Json body = {{"model", model},
                     {"max_tokens", load.output_tokens},
                     {"temperature", load.temperature},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
        if (load.ignore_eos) body["ignore_eos"] = true;
        if (!load.text.empty()) {
            body["prompt"] = cut_text(load.text, load.input_tokens, random);
        } else {
            Json ids = Json::array();
            for (std::int64_t k = 0; k < load.input_tokens; ++k) ids.push_back(token(random));
            body["prompt"] = std::move(ids);
        }
        bodies.push_back(body.dump());
    }
    return bodies;
}

Expected<ServeRun> run_serve_load(const ServeLoad& load,
                                  const std::function<void(std::int64_t)>& progress) {
    ServeRun run;
    run.model = load.model;
    if (run.model.empty()) {
        ESPALIER_ASSIGN_OR_RETURN(run.model, first_model(load));
    }
    const std::vector<std::string> bodies = request_bodies(load, run.model);
    const std::vector<double> arrivals = arrival_times(load);
    run.outcomes.resize(bodies.size());
    std::mutex mutex;
    std::condition_variable changed;
    std::int64_t under_way = 0, done = 0;
    const std::int64_t most = load.concurrency > 0 ? load.concurrency : kMaxConcurrency;
    const auto start = Clock::now();
    const auto work = [&](std::size_t i) {
        ServeOutcome& outcome = run.outcomes[i];
        outcome.began = seconds_between(start, Clock::now());
        if (const auto sent = send_one(load, bodies[i], outcome); !sent)
            outcome.error = sent.error().message;
        const std::lock_guard lock(mutex);
        --under_way;
        ++done;
        changed.notify_all();
    };
    std::vector<std::jthread> threads;
    std::unique_lock lock(mutex);
    for (std::size_t i = 0; i < bodies.size(); ++i) {
        const auto when = start + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(arrivals[i]));
        while (Clock::now() < when || under_way >= most) {
            const auto soon = Clock::now() + std::chrono::milliseconds(100);
            changed.wait_until(lock, under_way >= most ? soon : std::min(when, soon));
            progress(done);
        }
        run.most_under_way = std::max(run.most_under_way, ++under_way);
        threads.emplace_back(work, i);
    }
    while (done < std::ssize(bodies)) {
        changed.wait_for(lock, std::chrono::milliseconds(100));
        progress(done);
    }
    lock.unlock();
    threads.clear();
    run.seconds = seconds_between(start, Clock::now());
    return run;
}

std::optional<double> metric_of(const std::string& metrics, const std::string& name) {
    std::optional<double> sum;
    std::size_t from = 0;
    while (from < metrics.size()) {
        const std::size_t end = std::min(metrics.find('\n', from), metrics.size());
        const std::string_view line = std::string_view(metrics).substr(from, end - from);
        from = end + 1;
        const std::size_t stop = std::min(line.find_first_of("{ "), line.size());
        const std::string_view whole = line.substr(0, stop);
        const std::size_t space = line.rfind(' ');
        if (line.starts_with('#') || space == std::string_view::npos) continue;
        if (whole.substr(whole.find(':') + 1) != name) continue;
        sum = sum.value_or(0) + std::strtod(std::string(line.substr(space + 1)).c_str(), nullptr);
    }
    return sum;
}

}  // namespace espalier::cli
