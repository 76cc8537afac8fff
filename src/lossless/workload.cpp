// SPDX-License-Identifier: Apache-2.0
#include "lossless/workload.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "base/random.hpp"
#include "cache/page.hpp"
#include "lossless/grammars.hpp"

namespace espalier::lossless {
namespace {

using Tokens = std::vector<std::int32_t>;

enum class Kind { plain, long_prompts, grammars };

class Generator {
  public:
    Generator(std::uint64_t seed, const Subject& subject, Kind kind)
        : random_(seed),
          subject_(subject),
          sound_(subject.vocabulary() - subject.poisoned),
          long_(kind == Kind::long_prompts),
          grammars_(kind == Kind::grammars) {
        work_.seed = seed;
    }

    Workload operator()() {
        choose_palette();
        for (Tokens& base : bases_)
            for (int i = 0; i < (long_ ? 900 : 340); ++i) base.push_back(any_token(0.8));
        const int count = random_.between(2, 7);
        const bool priorities = random_.chance(0.5);
        for (int i = 0; i < count; ++i) {
            WorkloadRequest one;
            one.request = request();
            if (priorities) one.request.priority = random_.between(-2, 2);
            one.arrival = random_.chance(0.5) ? 0 : random_.between(0, 30);
            if (random_.chance(0.15)) {
                one.cancelled = one.arrival + random_.between(0, 25);
                one.cancelled_choice = random_.between(0, one.request.choices - 1);
            }
            if (long_ && i > 0 && random_.chance(0.5))
                continue_chat(one, random_.between(0, i - 1));
            work_.requests.push_back(one);
        }
        if (grammars_) constrain_requests();
        choose_settings();
        choose_drafters();
        if (grammars_) choose_grammar_drafter();
        prescribe_drafts();
        expect_outputs();
        return work_;
    }

  private:
    // Never a poisoned id: in a prompt that all requests share, it would fail every one of them.
    std::int32_t any_token(double from_palette) {
        const std::int32_t chosen = work_.palette[pick(work_.palette.size())];
        if (chosen < sound_ && random_.chance(from_palette)) return chosen;
        return random_.between(2, sound_ - 1);
    }
    std::int32_t poison() { return random_.between(sound_, subject_.vocabulary() - 1); }
    bool poisons(double chance) { return subject_.poisoned > 0 && random_.chance(chance); }
    std::size_t pick(std::size_t count) { return random_.bits() % count; }

    // Few tokens, so that texts repeat, stop strings are met and penalties bite.
    void choose_palette() {
        const int count = random_.between(4, 12);
        for (int i = 0; i < count; ++i) work_.palette.push_back(random_.between(2, sound_ - 1));
        for (int i = 0; i < 3; ++i) {
            const char letter = static_cast<char>('a' + random_.between(0, 5));
            const auto letters = subject_.tokenizer.encode({&letter, 1});
            if (letters && letters->size() == 1) work_.palette.push_back(letters->front());
        }
        const auto& eos = subject_.model.config().eos_token_ids;
        if (!eos.empty() && random_.chance(0.6)) work_.palette.push_back(eos[pick(eos.size())]);
        if (poisons(0.3)) work_.palette.push_back(poison());
        std::sort(work_.palette.begin(), work_.palette.end());
        work_.palette.erase(std::unique(work_.palette.begin(), work_.palette.end()),
                            work_.palette.end());
    }

    // Lengths around the edges of pages, where the form changes, and around 256, from where on it
    // does.
    int prompt_length() {
        if (long_ && random_.chance(0.7))
            return 256 * random_.between(1, 3) + 64 * random_.between(-1, 2) +
                   random_.between(-2, 2);
        if (random_.chance(0.3)) return random_.between(1, 20);
        if (random_.chance(0.4))
            return random_.chance(0.6) ? random_.between(62, 67) : random_.between(126, 131);
        return random_.chance(0.85) ? random_.between(20, 150) : random_.between(254, 325);
    }

    Tokens prompt() {
        const int length = prompt_length();
        const Tokens& base = bases_[pick(bases_.size())];
        const int shared = random_.chance(0.3) ? length : random_.between(0, length);
        Tokens tokens(base.begin(), base.begin() + shared);
        while (static_cast<int>(tokens.size()) < length) tokens.push_back(any_token(0.5));
        if (poisons(0.04)) tokens[pick(tokens.size())] = poison();
        return tokens;
    }

    // After the other has answered, or while it does: what it has generated is found page by page.
    void continue_chat(WorkloadRequest& one, int earlier) {
        one.continues = earlier;
        one.arrival =
            work_.requests[static_cast<std::size_t>(earlier)].arrival + 3 * random_.between(0, 30);
        if (one.cancelled >= 0) one.cancelled = one.arrival + random_.between(0, 25);
        one.request.prompt.resize(std::min<std::size_t>(one.request.prompt.size(), 1 + pick(80)));
        one.request.salt = work_.requests[static_cast<std::size_t>(earlier)].request.salt;
    }

    engine::Request request() {
        engine::Request one;
        one.prompt = prompt();
        one.choices = random_.chance(0.75) ? 1 : random_.between(2, 3);
        one.salt = random_.chance(0.1) ? 7 : 0;
        one.speculate = !random_.chance(0.15);
        one.logprobs = !random_.chance(0.2);
        if (random_.chance(0.05)) one.deadline = random_.between(1, 400) * 1000;
        sampling(one.sampling);
        output(one.output, one.prompt.size());
        if (one.output.min_tokens == 0 && random_.chance(0.1))
            for (int i = random_.between(1, 60); i > 0; --i)
                one.forced_output.push_back(any_token(0.9));
        return one;
    }

    // Mostly what a request leaves alone; otherwise where requests usually are.
    void choose(const accept::Parameter& parameter, float& value) {
        if (!random_.chance(0.25)) return;
        const double share = random_.between(0, 16) / 16.0;
        value = static_cast<float>(parameter.usual_least +
                                   share * (parameter.usual_most - parameter.usual_least));
    }
    void choose(const accept::Parameter& parameter, std::int64_t& value) {
        if (random_.chance(0.3))
            value = random_.between(static_cast<int>(parameter.usual_least),
                                    static_cast<int>(parameter.usual_most));
    }
    void choose(const accept::Parameter&, std::uint64_t& value) { value = random_.bits(); }
    void choose(const accept::Parameter&, std::vector<accept::SamplingOptions::Bias>& biases) {
        if (!random_.chance(0.75)) return;
        for (const std::int32_t token : work_.palette)
            if (token < sound_ || random_.chance(0.3))
                biases.push_back({token, static_cast<float>(random_.between(2, 12))});
    }
    void sampling(accept::SamplingOptions& options) {
        accept::SamplingOptions::parameters(
            [this](const accept::Parameter& parameter, auto& value) { choose(parameter, value); },
            options);
        if (random_.chance(0.35)) options.temperature = 0.0f;
    }

    void output(accept::OutputOptions& options, std::size_t prompt_length) {
        options.max_tokens = random_.chance(0.8) ? random_.between(1, 24) : random_.between(60, 80);
        if (random_.chance(0.3))
            options.min_tokens = random_.between(0, static_cast<int>(options.max_tokens));
        options.ignore_eos = random_.chance(0.3);
        options.include_stop = random_.chance(0.3);
        options.skip_special_tokens = random_.chance(0.7);
        if (random_.chance(0.2)) options.stop_token_ids = {any_token(0.9)};
        if (random_.chance(0.4))
            for (int i = random_.between(1, 3); i > 0; --i) options.stop.push_back(stop_string());
        if (random_.chance(0.4)) options.top_logprobs = random_.between(0, 5);
        if ((long_ || prompt_length <= 150) && random_.chance(0.15))
            options.prompt_top_logprobs = random_.between(0, 3);
        if (options.prompt_top_logprobs && random_.chance(0.2))
            options.max_tokens = options.min_tokens = 0;  // the prompt is scored, nothing more
    }

    // Text of one to three tokens of the palette, as far as it is text.
    std::string stop_string() {
        Tokens tokens;
        for (int i = random_.between(1, 3); i > 0; --i) tokens.push_back(any_token(1));
        const std::string text = subject_.tokenizer.decode(tokens);
        const bool fits = !text.empty() && std::ssize(text) <= accept::kMaxStopStringBytes;
        return fits ? text : "a";
    }

    void choose_settings() {
        schedule::SchedulerOptions& options = work_.settings.schedule;
        std::int64_t longest = 0;
        for (const WorkloadRequest& one : work_.requests)
            longest = std::max(longest, static_cast<std::int64_t>(one.request.prompt.size()) +
                                            one.request.output.max_tokens);
        if (long_) longest += 400;  // for next turns
        // Now and then the context ends before max_tokens does.
        options.max_model_len = long_                 ? kLongWorkloadLength
                                : random_.chance(0.8) ? kWorkloadLength
                                                      : std::max<std::int64_t>(longest - 5, 2);
        for (WorkloadRequest& one : work_.requests)
            if (static_cast<std::int64_t>(one.request.prompt.size()) >= options.max_model_len)
                one.request.prompt.resize(static_cast<std::size_t>(options.max_model_len) - 1);
        for (WorkloadRequest& one : work_.requests)
            one.request.output.min_tokens = std::min(
                one.request.output.min_tokens,
                options.max_model_len - static_cast<std::int64_t>(one.request.prompt.size()));
        options.page_count =
            1 + cache::pages_for(longest) + (random_.chance(0.75) ? random_.between(0, 2) : 40);
        options.max_rows = random_.between(1, 8);
        constexpr int kQuanta[] = {1, 7, 16, 64, 512};
        options.prompt_quantum = random_.one_of(kQuanta);
        options.max_step_tokens =
            options.max_rows + options.prompt_quantum + random_.between(0, 130);
        options.max_step_gather = options.max_rows + random_.between(0, 200);
        options.prefix_cache = random_.chance(0.85);
        options.hash_seed = random_.bits();
        // A quarter plans within a budget of splits, often the smallest there may be. (Not from new
        // random bits, which would make other workloads of old seeds.)
        if (options.hash_seed % 4 == 0)
            options.max_step_splits = 2 * ((options.max_model_len + 127) / 128) +
                                      static_cast<std::int64_t>(options.hash_seed / 4 % 50);
        if (long_ && random_.chance(0.25)) options.prefill_segment = 0;
        work_.settings.grant =
            random_.chance(0.7) ? engine::NodeGrant::everything : engine::NodeGrant::measured;
        // On a machine where tokens cost nothing, and on one where they cost something.
        const double per_token = random_.chance(0.5) ? 1e-9 : 2e-4;
        const std::array samples = {
            speculate::StepSample{.size = {.rows = 1, .tokens = 1}, .seconds = 1e-3},
            speculate::StepSample{.size = {.rows = 1, .tokens = 64},
                                  .seconds = 1e-3 + 64 * per_token}};
        work_.settings.step_time = *speculate::StepTime::fit(samples);
    }

    void choose_drafters() {
        work_.ngram = random_.chance(0.4);
        work_.random_drafter = random_.chance(0.9);
        work_.drafter.truth = 0.25 * random_.between(0, 4);
        work_.drafter.silence = random_.chance(0.5) ? 0.0 : 0.3;
        work_.drafter.truth_last = random_.chance(0.5);
        if (random_.chance(0.1)) work_.drafter.breaks_after = random_.between(0, 20);
        if (random_.chance(0.05)) work_.drafter.out_of_vocabulary = 0.1;
        work_.drafter.model_like = random_.chance(0.3);
        work_.settings.schedule.reserve_windows = work_.drafter.model_like;
        add_drafters();
    }

    // A third has several drafters that behave differently: one that is right, but never on the
    // first branch, one that is never right, one that breaks, one so slow that it should not be
    // asked. (Not from the generator's random bits, which would make other workloads of old seeds.)
    void add_drafters() {
        Random random(work_.settings.schedule.hash_seed);
        if (subject_.make_parts) {
            work_.own_drafters = true;
            work_.settings.schedule.reserve_windows = true;
            return;
        }
        if (!random.chance(0.33)) return;
        const RandomDrafterOptions kinds[] = {
            {.truth = 0.8, .silence = 0, .truth_last = true},
            {.truth = 0, .silence = 0},
            {.truth = 0.5, .breaks_after = random.between(0, 12)},
            {.truth = 0.9, .silence = 0, .call_nanoseconds = 40'000'000},
        };
        const int most = kMaxDrafters - (work_.ngram ? 1 : 0) - (work_.random_drafter ? 1 : 0);
        for (int i = random.between(1, most); i > 0; --i) {
            RandomDrafterOptions one = random.one_of(kinds);
            one.model_like = random.chance(0.7);
            work_.more_drafters.push_back(one);
            if (one.model_like) work_.settings.schedule.reserve_windows = true;
        }
    }

    void constrain_requests() {
        Random random(work_.seed ^ 0x67'7261'6d6d'6172);
        for (WorkloadRequest& one : work_.requests)
            constrain(random, subject_, work_.palette, one.request);
    }

    // Three quarters of the workloads; others make room for it.
    void choose_grammar_drafter() {
        work_.grammar_drafter = work_.settings.schedule.hash_seed % 4 != 0;
        if (!work_.grammar_drafter) return;
        if (work_.own_drafters && work_.random_drafter) work_.ngram = false;
        const std::size_t others = (work_.own_drafters ? 2u : 0u) + (work_.ngram ? 1u : 0u) +
                                   (work_.random_drafter ? 1u : 0u);
        const std::size_t room = static_cast<std::size_t>(kMaxDrafters) - 1 - others;
        if (work_.more_drafters.size() > room) work_.more_drafters.resize(room);
    }

    // A fifth of the requests that draft prescribe their trees.
    void prescribe_drafts() {
        Random random(work_.settings.schedule.hash_seed + 1);
        for (WorkloadRequest& one : work_.requests) {
            if (!one.request.speculate || !random.chance(0.2)) continue;
            if (random.chance(0.7)) one.request.draft_depth = random.between(1, 8);
            if (random.chance(0.5)) one.request.draft_width = random.between(1, 6);
            if (random.chance(0.3)) one.request.draft_nodes = random.between(1, 63);
        }
    }

    // A fifth expects an output: some of its prompt again, which is mostly wrong.
    void expect_outputs() {
        Random random(work_.settings.schedule.hash_seed + 2);
        for (WorkloadRequest& one : work_.requests) {
            if (!random.chance(0.2)) continue;
            const std::vector<std::int32_t>& prompt = one.request.prompt;
            const int length = static_cast<int>(prompt.size());
            const int begin = random.between(0, length - 1);
            one.request.expected_output.assign(prompt.begin() + begin,
                                               prompt.begin() + random.between(begin, length));
        }
    }

    Random random_;
    Subject subject_;
    std::int32_t sound_;  // ids below this are not poisoned
    bool long_, grammars_;
    Workload work_;
    std::array<Tokens, 3> bases_;
};

}  // namespace

Expected<void> check_subject(const Subject& subject) {
    const auto at_least = [](const char* what, std::int64_t has,
                             std::int64_t needs) -> Expected<void> {
        if (has >= needs) return {};
        return fail(ErrorKind::unsupported, "workloads need {} of {}, the model has {}", what,
                    needs, has);
    };
    const model::ModelLimits& limits = subject.model.limits();
    ESPALIER_RETURN_IF_ERROR(
        at_least("a vocabulary", subject.vocabulary() - subject.poisoned, kWorkloadVocabulary));
    ESPALIER_RETURN_IF_ERROR(at_least("a context", limits.max_kv_len, kWorkloadLength));
    ESPALIER_RETURN_IF_ERROR(at_least("batches", limits.max_tokens, kWorkloadTokens));
    return at_least("gathered tokens", limits.max_gather, kWorkloadGather);
}

Workload random_workload(std::uint64_t seed, const Subject& subject) {
    return Generator(seed, subject, Kind::plain)();
}

Workload long_workload(std::uint64_t seed, const Subject& subject) {
    return Generator(seed, subject, Kind::long_prompts)();
}

Workload grammar_workload(std::uint64_t seed, const Subject& subject) {
    return Generator(seed, subject, Kind::grammars)();
}

}  // namespace espalier::lossless
