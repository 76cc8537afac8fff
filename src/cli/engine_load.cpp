// SPDX-License-Identifier: Apache-2.0
#include "cli/engine_load.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/random.hpp"

namespace espalier::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Tokens = std::vector<std::int32_t>;

double uniform(Random& random) {
    return (static_cast<double>(random.bits() >> 11) + 0.5) * 0x1p-53;
}

std::int64_t length_in(const LengthRange& range, Random& random) {
    const double low = std::log(static_cast<double>(range.low));
    const double high = std::log(static_cast<double>(range.high) + 1);
    const double drawn = std::exp(low + (high - low) * uniform(random));
    return std::clamp(static_cast<std::int64_t>(drawn), range.low, range.high);
}

Expected<std::string> read_file(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return fail(ErrorKind::not_found, "{}: cannot be read", path);
    return std::string(std::istreambuf_iterator<char>(in), {});
}

// Source of prompts: a file's tokens from random places on, or random tokens.
class PromptSource {
  public:
    static Expected<PromptSource> open(const LoadOptions& options, const text::Tokenizer& tokenizer,
                                       std::int64_t vocabulary) {
        PromptSource source(static_cast<int>(vocabulary), options.seed);
        if (!options.text.empty()) {
            ESPALIER_ASSIGN_OR_RETURN(const std::string text, read_file(options.text));
            ESPALIER_ASSIGN_OR_RETURN(source.text_, tokenizer.encode(text));
            const auto longest =
                static_cast<std::size_t>(std::max(options.prompt.high, options.shared));
            if (source.text_.size() < longest)
                return fail(ErrorKind::invalid, "{}: {} tokens, but a prompt may have {}",
                            options.text, source.text_.size(), longest);
        }
        source.shared_ = source.take(static_cast<std::size_t>(options.shared));
        return source;
    }

    Tokens prompt(std::int64_t length) {
        const auto count = static_cast<std::size_t>(length);
        Tokens tokens(shared_.begin(),
                      shared_.begin() + std::min(std::ssize(shared_), std::ptrdiff_t{length}));
        const Tokens own = take(count - tokens.size());
        tokens.insert(tokens.end(), own.begin(), own.end());
        return tokens;
    }

  private:
    PromptSource(int vocabulary, std::uint64_t seed) : vocabulary_(vocabulary), random_(seed) {}

    Tokens take(std::size_t count) {
        if (!text_.empty()) {
            const std::size_t from = random_.bits() % (text_.size() - count + 1);
            const auto begin = text_.begin() + static_cast<std::ptrdiff_t>(from);
            return {begin, begin + static_cast<std::ptrdiff_t>(count)};
        }
        Tokens tokens(count);
        for (std::int32_t& token : tokens) token = random_.between(0, vocabulary_ - 1);
        return tokens;
    }

    int vocabulary_;
    Random random_;
    Tokens text_, shared_;
};

// Lines of {"prompt": …, "completion": …}, or of prompts that get outputs of max_output tokens at
// most; other fields are the file's own business.
Expected<std::vector<engine::Request>> read_requests(const LoadOptions& options,
                                                     const text::Tokenizer& tokenizer,
                                                     std::int64_t max_model_len) {
    const bool completions = !options.completions.empty();
    const std::string& path = completions ? options.completions : options.prompts;
    ESPALIER_ASSIGN_OR_RETURN(const std::string text, read_file(path));
    std::vector<engine::Request> requests;
    std::size_t number = 0;
    for (std::size_t begin = 0; begin < text.size(); ++number) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const auto line = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
        begin = end + 1;
        const auto field = [&](const char* name) -> Expected<Tokens> {
            if (!line.is_object() || !line.contains(name) || !line[name].is_string())
                return fail(ErrorKind::invalid, "{}: line {} has no text \"{}\"", path, number + 1,
                            name);
            return tokenizer.encode(line[name].get<std::string>());
        };
        engine::Request request;
        ESPALIER_ASSIGN_OR_RETURN(request.prompt, field("prompt"));
        if (completions) {
            ESPALIER_ASSIGN_OR_RETURN(request.forced_output, field("completion"));
            if (request.forced_output.empty())
                return fail(ErrorKind::invalid, "{}: line {} has an empty completion", path,
                            number + 1);
        }
        if (tokenizer.bos()) request.prompt.insert(request.prompt.begin(), *tokenizer.bos());
        request.output.max_tokens =
            completions ? std::ssize(request.forced_output) : options.output.high;
        const std::int64_t length = std::ssize(request.prompt) + request.output.max_tokens;
        if (length > max_model_len)
            return fail(ErrorKind::exhausted,
                        "{}: line {} has {} tokens, the model's context is {}", path, number + 1,
                        length, max_model_len);
        requests.push_back(std::move(request));
    }
    if (requests.empty()) return fail(ErrorKind::invalid, "{}: no lines", path);
    return requests;
}

// Signal by which the engine's thread wakes the clients'; it may outlive them by one call.
class WakeUp {
  public:
    void signal() {
        {
            const std::lock_guard lock(mutex_);
            if (std::exchange(signalled_, true)) return;
        }
        woken_.notify_one();
    }
    void wait_until(Clock::time_point deadline) {
        std::unique_lock lock(mutex_);
        woken_.wait_until(lock, deadline, [&] { return signalled_; });
        signalled_ = false;
    }

  private:
    std::mutex mutex_;
    std::condition_variable woken_;
    bool signalled_ = false;
};

// All clients in one thread, as a server has them. A thread each would be woken in every step, and
// on two cores take them from the engine: eight of them cost up to half of its speed.
class Clients {
  public:
    Clients(engine::Engine& engine, const std::vector<LoadRequest>& load)
        : engine_(engine), load_(load), start_(Clock::now()) {
        result_.first_token.resize(load.size());
    }

    Expected<LoadResult> run(std::int64_t count,
                             const std::function<void(std::int64_t)>& progress) {
        std::vector<Client> clients(static_cast<std::size_t>(count));
        while (result_.requests < std::ssize(load_)) {
            for (Client& client : clients) {
                if (!client.stream) ESPALIER_RETURN_IF_ERROR(send(client));
                if (client.stream) ESPALIER_RETURN_IF_ERROR(read(client));
            }
            progress(result_.requests);
            wake_->wait_until(next_moment());
        }
        result_.status = engine_.status();
        std::sort(result_.first_token.begin(), result_.first_token.end());
        std::sort(result_.gaps.begin(), result_.gaps.end());
        return std::move(result_);
    }

  private:
    struct Client {
        std::optional<engine::Stream> stream;
        std::size_t index = 0;  // of its request
        std::int64_t tokens = 0;
        double last = 0;  // when it was sent, or the last token came
    };

    double now() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

    // The next arrival, if a client may wait for one; otherwise just some time.
    Clock::time_point next_moment() const {
        double seconds = now() + 0.1;
        if (next_ < load_.size() && load_[next_].arrival_seconds)
            seconds = std::clamp(*load_[next_].arrival_seconds, now() + 0.001, seconds);
        return start_ +
               std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    }

    Expected<void> send(Client& client) {
        if (next_ == load_.size()) return {};
        const LoadRequest& one = load_[next_];
        if (one.arrival_seconds && *one.arrival_seconds > now()) return {};
        client.index = next_++;
        client.tokens = 0;
        client.last = one.arrival_seconds.value_or(now());
        ESPALIER_ASSIGN_OR_RETURN(engine::Stream stream,
                                  engine_.submit(one.request, [wake = wake_] { wake->signal(); }));
        client.stream.emplace(std::move(stream));
        return {};
    }

    Expected<void> read(Client& client) {
        for (;;) {
            switch (client.stream->next_within(updates_, std::chrono::nanoseconds(0))) {
                case engine::Mailbox::Poll::timed_out:
                    return {};
                case engine::Mailbox::Poll::updated:
                    ESPALIER_RETURN_IF_ERROR(take(client, updates_.choices[0]));
                    break;
                case engine::Mailbox::Poll::finished:
                    finish(client);
                    return send(client);
            }
        }
    }

    Expected<void> take(Client& client, const engine::ChoiceUpdate& choice) {
        const bool may_end = load_[client.index].request.grammar != nullptr;
        const accept::FinishReason reason = choice.finish.reason;
        if (choice.ended && reason != accept::FinishReason::length &&
            !(may_end && reason == accept::FinishReason::eos))
            return fail(ErrorKind::io, "request {} ended with reason {} {}", client.index,
                        static_cast<int>(reason), choice.message);
        const std::int64_t fresh = choice.usage.completion_tokens - client.tokens;
        if (fresh == 0) return {};
        const double arrived = now();
        const double waited = arrived - client.last;
        if (client.tokens == 0)
            result_.first_token[client.index] = waited;
        else
            result_.gaps.insert(result_.gaps.end(), static_cast<std::size_t>(fresh),
                                waited / static_cast<double>(fresh));
        client.tokens += fresh;
        client.last = arrived;
        return {};
    }

    void finish(Client& client) {
        result_.requests += 1;
        result_.prompt_tokens += std::ssize(load_[client.index].request.prompt);
        result_.tokens += client.tokens;
        result_.seconds = std::max(result_.seconds, client.last);
        client.stream.reset();
    }

    engine::Engine& engine_;
    const std::vector<LoadRequest>& load_;
    const Clock::time_point start_;
    const std::shared_ptr<WakeUp> wake_ = std::make_shared<WakeUp>();
    std::size_t next_ = 0;  // request to be sent
    engine::Updates updates_;
    LoadResult result_;
};

}  // namespace

Expected<LengthRange> parse_range(const char* flag, const std::string& text) {
    LengthRange range;
    const auto number = [](std::string_view part, std::int64_t& value) {
        const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
        return error == std::errc() && end == part.data() + part.size();
    };
    const std::string_view view(text);
    const std::size_t dash = view.find('-');
    const std::string_view high = dash == std::string_view::npos ? view : view.substr(dash + 1);
    constexpr std::int64_t kMost = std::int64_t{1} << 24;
    if (!number(view.substr(0, dash), range.low) || !number(high, range.high) || range.low < 1 ||
        range.low > range.high || range.high > kMost)
        return fail(ErrorKind::invalid, "{} {}: not a number of tokens, or LOW-HIGH", flag, text);
    return range;
}

Expected<std::vector<LoadRequest>> make_load(const LoadOptions& options,
                                             const text::Tokenizer& tokenizer,
                                             std::int64_t vocabulary, std::int64_t max_model_len) {
    const bool from_file = !options.completions.empty() || !options.prompts.empty();
    const std::int64_t longest = options.prompt.high + options.output.high;
    if (!from_file && longest > max_model_len)
        return fail(ErrorKind::exhausted,
                    "--prompt and --output allow {} tokens together, the model's context is {}",
                    longest, max_model_len);
    std::vector<engine::Request> given;
    if (from_file) {
        ESPALIER_ASSIGN_OR_RETURN(given, read_requests(options, tokenizer, max_model_len));
    }
    ESPALIER_ASSIGN_OR_RETURN(PromptSource prompts,
                              PromptSource::open(options, tokenizer, vocabulary));
    Random random(options.seed + 1);
    std::vector<LoadRequest> load(static_cast<std::size_t>(options.requests));
    double arrival = 0;
    for (std::size_t i = 0; i < load.size(); ++i) {
        engine::Request& request = load[i].request;
        if (from_file)
            request = given[i % given.size()];
        else
            request.prompt = prompts.prompt(length_in(options.prompt, random));
        if (options.completions.empty())
            request.output.max_tokens = length_in(options.output, random);
        request.sampling.temperature = options.temperature;
        request.sampling.seed = options.seed + i;
        request.output.ignore_eos = true;
        request.logprobs = false;
        if (options.arrival_rate > 0) {
            load[i].arrival_seconds = arrival;
            arrival -= std::log(uniform(random)) / options.arrival_rate;
        }
    }
    return load;
}

Expected<LoadResult> run_load(engine::Engine& engine, const std::vector<LoadRequest>& load,
                              std::int64_t clients,
                              const std::function<void(std::int64_t)>& progress) {
    return Clients(engine, load).run(std::min(clients, std::ssize(load)), progress);
}

}  // namespace espalier::cli
