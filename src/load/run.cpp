// SPDX-License-Identifier: Apache-2.0
#include "load/run.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "load/prompts.hpp"
#include "load/schedule.hpp"

namespace espalier::load {
namespace {

using client::Failure;
using client::FailureKind;
using client::Verdict;

constexpr double kProgressSeconds = 0.1;

// The one run of a client. Timers may outlive it in the client: they hold it weakly.
class Run : public std::enable_shared_from_this<Run> {
  public:
    Run(client::HttpClient& client, const LoadOptions& options,
        const std::function<void(const Progress&)>& progress)
        : client_(client),
          options_(options),
          report_progress_(progress),
          pacer_(arrival_times(options), options.concurrency),
          start_(client.now()) {}

    RunResult run() {
        advance();
        show_progress();
        client_.run([this] { stop_early(RunEnd::interrupted, "interrupted"); });
        for (const RequestRecord& record : result_.records)
            result_.seconds = std::max(result_.seconds, record.ended);
        return std::move(result_);
    }

  private:
    class Listener final : public client::CallListener {
      public:
        Listener(Run& run, std::size_t request, Recorder recorder)
            : run_(run), request_(request), recorder_(std::move(recorder)) {}
        void on_status(int status) override { recorder_.status(status); }
        Verdict on_bytes(std::string_view bytes) override {
            const std::int64_t before = recorder_.record().pieces();
            const Verdict verdict = recorder_.bytes(run_.now(), bytes);
            run_.progress_.pieces += recorder_.record().pieces() - before;
            return verdict;
        }
        void on_end(std::optional<Failure> failure) override {
            recorder_.end(run_.now(), std::move(failure));
            run_.on_ended(request_, recorder_.record());
        }

      private:
        Run& run_;
        std::size_t request_;
        Recorder recorder_;
    };

    double now() const { return client_.now() - start_; }
    void advance();
    void send(std::size_t request);
    void on_ended(std::size_t request, const RequestRecord& record);
    void stop_early(RunEnd end, const char* why);
    void show_progress();

    client::HttpClient& client_;
    const LoadOptions& options_;
    const std::function<void(const Progress&)>& report_progress_;
    Pacer pacer_;
    const double start_;
    bool timer_is_set_ = false;
    std::int64_t gone_in_a_row_ = 0;
    Progress progress_;
    RunResult result_;
};

void Run::advance() {
    while (true) {
        const Pacer::Step step = pacer_.next(now());
        if (const auto* send_now = std::get_if<Pacer::Send>(&step)) {
            send(send_now->request);
            continue;
        }
        if (std::holds_alternative<Pacer::Finished>(step)) client_.stop();
        const auto* wait = std::get_if<Pacer::WaitUntil>(&step);
        if (wait == nullptr || std::exchange(timer_is_set_, true)) return;
        client_.after(wait->seconds - now(), [weak = weak_from_this()] {
            const auto self = weak.lock();
            if (!self) return;
            self->timer_is_set_ = false;
            self->advance();
        });
        return;
    }
}

void Run::send(std::size_t request) {
    const std::string body = request_body(options_, request);
    const std::int64_t guess =
        options_.prompts.empty()
            ? options_.input_tokens
            : std::ssize(options_.prompts[request % options_.prompts.size()]) / kBytesPerToken;
    const double sent = now();
    result_.records.push_back({});
    ++progress_.sent;
    client_.start(
        {.method = "POST", .path = request_path(options_.api), .body = body},
        std::make_shared<Listener>(
            *this, request, Recorder(pacer_.due(request), sent, guess, options_.output_tokens)));
}

void Run::on_ended(std::size_t request, const RequestRecord& record) {
    result_.records[request] = record;
    pacer_.ended();
    ++progress_.ended;
    progress_.failed += record.failure ? 1 : 0;
    const bool gone = record.failure && (record.failure->kind == FailureKind::connect ||
                                         record.failure->kind == FailureKind::timeout);
    gone_in_a_row_ = gone ? gone_in_a_row_ + 1 : 0;
    if (gone_in_a_row_ >= kGoneAfter) stop_early(RunEnd::server_gone, "the server is gone");
    advance();
}

void Run::stop_early(RunEnd end, const char* why) {
    if (result_.end != RunEnd::complete) return;
    result_.end = end;
    pacer_.give_up();
    client_.end_all({FailureKind::interrupted, why});
    advance();
}

void Run::show_progress() {
    progress_.seconds = now();
    report_progress_(progress_);
    client_.after(kProgressSeconds, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->show_progress();
    });
}

}  // namespace

RunResult run_load(client::HttpClient& client, const LoadOptions& options,
                   const std::function<void(const Progress&)>& progress) {
    return std::make_shared<Run>(client, options, progress)->run();
}

}  // namespace espalier::load
