// SPDX-License-Identifier: Apache-2.0
#include "replay/replayer.hpp"

#include <memory>
#include <new>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>

#include "engine/stepper.hpp"
#include "grammar/compiler.hpp"
#include "replay/convert.hpp"
#include "replay/event_maker.hpp"
#include "trace/difference.hpp"

namespace espalier::replay {
namespace {

// A replay is compared by its events; the text itself goes nowhere.
class DiscardUpdates final : public engine::Receiver {
  public:
    void receive(const engine::Update&) override {}
};

// The times that a step asks for: first when it begins, for what expires before the plan; later for
// what expires after it.
class ScriptedClock {
  public:
    void set(schedule::Time first, schedule::Time later) {
        first_ = first;
        later_ = later;
    }
    schedule::Time operator()() { return std::exchange(first_, later_); }

  private:
    schedule::Time first_ = 0, later_ = 0;
};

schedule::Time advance_time(const trace::Step& step) {
    const trace::Times& times = step.times;
    return step.begin + times.offer + times.draft + times.plan + times.build + times.forward +
           times.mask.value_or(0) + times.sample + times.walk + times.extend.value_or(0) +
           times.commit;
}

class Replayer final : public EventMaker, public engine::TreeScript {
  public:
    Replayer(trace::Reader& reader, const text::Tokenizer& tokenizer)
        : reader_(reader), tokenizer_(tokenizer) {}

    Expected<Replayed> run(std::unique_ptr<engine::Target> target) {
        engine::StepperParts parts{std::move(target), tokenizer_, {}, [this] { return clock_(); }};
        parts.observer = this;
        parts.script = this;
        ESPALIER_ASSIGN_OR_RETURN(
            stepper_, engine::Stepper::create(std::move(parts),
                                              stepper_settings_of(reader_.header().settings)));
        for (;;) {
            ESPALIER_ASSIGN_OR_RETURN(const std::optional<trace::Event> event, reader_.next());
            if (!event) break;
            ESPALIER_RETURN_IF_ERROR(
                std::visit([this](const auto& value) { return repeat(value); }, *event));
        }
        done_.unfinished = static_cast<std::int64_t>(live_.size());
        done_.ending = reader_.ending();
        return done_;
    }

    const speculate::Tree* tree(RequestSlot request) override {
        const auto found = trees_.find(request);
        return found == trees_.end() ? nullptr : &found->second;
    }
    bool reserves_windows() const override { return reserves_windows_; }

  private:
    Expected<void> repeat(const trace::Submission& traced) {
        engine::Request request = request_of(traced);
        if (traced.grammar) {
            auto compiled = compile(*traced.grammar);
            if (!compiled) return refuse(traced.request, compiled.error().message);
            request.grammar = std::move(*compiled);
        }
        auto checked =
            engine::check_request(std::move(request), stepper_->request_limits(), tokenizer_);
        if (!checked) return refuse(traced.request, checked.error().message);
        clock_.set(traced.time, traced.time);
        stepper_->submit(std::move(*checked), std::make_shared<DiscardUpdates>());
        const std::string other = trace::difference(traced, *submission_);
        if (!other.empty()) return refuse(traced.request, other);
        done_.requests += traced.choices;
        return {};
    }

    // With the vocabulary that the recording engine had: the model's, ended by the model's eos.
    Expected<std::shared_ptr<const grammar::CompiledGrammar>> compile(
        const trace::Grammar& traced) {
        ESPALIER_ASSIGN_OR_RETURN(const grammar::Specification specification,
                                  specification_of(traced));
        if (!compiler_) {
            const engine::RequestLimits& limits = stepper_->request_limits();
            ESPALIER_ASSIGN_OR_RETURN(
                grammar::Vocabulary vocabulary,
                grammar::Vocabulary::make(tokenizer_, limits.vocabulary, limits.eos_token_ids));
            compiler_.emplace(std::move(vocabulary));
        }
        return compiler_->compile(specification);
    }

    Expected<void> repeat(const trace::Cancellation& traced) {
        const auto found = live_.find(traced.request);
        if (found == live_.end())
            return refuse(traced.request,
                          "is cancelled in the trace, but is not there in this run");
        clock_.set(traced.time, traced.time);
        stepper_->cancel(found->second);
        return {};
    }

    Expected<void> repeat(const trace::Step& traced) {
        ESPALIER_RETURN_IF_ERROR(prescribe_trees(traced));
        clock_.set(traced.begin, advance_time(traced));
        reserves_windows_ = !traced.unreserved;
        stepper_->step();
        trees_.clear();
        made_.times = traced.times;  // those are this run's own
        // The proposer of a node is the recorded run's word: here trees are prescribed.
        for (std::size_t i = 0; i < made_.trees.size() && i < traced.trees.size(); ++i) {
            made_.trees[i].drafters = traced.trees[i].drafters;
            made_.trees[i].from = traced.trees[i].from;
            made_.trees[i].ranks = traced.trees[i].ranks;
        }
        const std::string other = trace::difference(traced, made_);
        if (!other.empty())
            return fail(ErrorKind::invalid, "{}: step {}: {}", reader_.place(), traced.number,
                        other);
        ++done_.steps;
        for (const trace::Outcome& outcome : traced.outcomes)
            done_.tokens += static_cast<std::int64_t>(outcome.drawn.size());
        return {};
    }
    // The reader keeps it to itself.
    Expected<void> repeat(const trace::End&) { return {}; }

    Expected<void> prescribe_trees(const trace::Step& traced) {
        for (const trace::Tree& tree : traced.trees) {
            const auto found = live_.find(tree.request);
            if (found == live_.end())
                return fail(ErrorKind::invalid,
                            "{}: step {}: request {} has a tree, but is not there in this run",
                            reader_.place(), traced.number, tree.request);
            const auto made = speculate::Tree::from(tree.tokens, tree.parents,
                                                    stepper_->request_limits().vocabulary);
            if (!made)
                return fail(ErrorKind::invalid, "{}: step {}: the tree of request {}: {}",
                            reader_.place(), traced.number, tree.request, made.error().message);
            if (!trees_.emplace(found->second.slot, *made).second)
                return fail(ErrorKind::invalid, "{}: step {}: request {} has two trees",
                            reader_.place(), traced.number, tree.request);
        }
        return {};
    }

    Expected<void> refuse(std::int64_t request, const std::string& why) const {
        return fail(ErrorKind::invalid, "{}: request {}: {}", reader_.place(), request, why);
    }

    void take(trace::Submission submission, std::span<const schedule::RequestId> ids) override {
        submission_ = std::move(submission);
        for (const schedule::RequestId& id : ids) live_.emplace(id.serial, id);
    }
    void take(trace::Cancellation) override {}
    void take(trace::Step& step) override { std::swap(made_, step); }
    void note_end(const schedule::RequestId& id) override { live_.erase(id.serial); }

    trace::Reader& reader_;
    const text::Tokenizer& tokenizer_;
    std::optional<grammar::Compiler> compiler_;  // made with the first grammar
    ScriptedClock clock_;
    std::unique_ptr<engine::Stepper> stepper_;
    std::unordered_map<std::int64_t, schedule::RequestId> live_;  // by number
    std::unordered_map<RequestSlot, speculate::Tree> trees_;      // of the step under way
    bool reserves_windows_ = true;                                // likewise
    std::optional<trace::Submission> submission_;                 // the last one made
    trace::Step made_;
    Replayed done_;
};

// The scheduler keeps a table of pages for every row; each of the two numbers may be large, but no
// real trace has both.
Expected<void> check_sizes(const trace::Settings& settings, const std::string& place) {
    constexpr std::int64_t kMostPages = std::int64_t{1} << 25;
    const std::int64_t pages =
        std::min(settings.page_count, settings.max_model_len / cache::kPageTokens + 1);
    if (pages <= kMostPages / std::max<std::int64_t>(settings.max_rows, 1)) return {};
    return fail(ErrorKind::exhausted,
                "{}: the settings ask for {} rows of {} pages; at most {} pages in all are set up",
                place, settings.max_rows, pages, kMostPages);
}

}  // namespace

Expected<void> check_identity(const trace::Header& traced, const TextIdentity& here) {
    const std::optional<IdentityDifference> other = difference(traced.identity, here);
    if (!other) return {};
    std::string hint;
    if (other->field == "variant")
        hint = fmt::format(" (ESPALIER_CPU_VARIANT={} chooses it, where the machine has it)",
                           other->recorded);
    if (other->field == "model") hint = fmt::format(" (the trace's is '{}')", traced.model.name);
    return fail(ErrorKind::unsupported, "{}: the trace has {}, this run {}{}", other->field,
                other->recorded, other->here, hint);
}

Expected<Replayed> replay(trace::Reader& reader, const MakeTarget& make_target,
                          const text::Tokenizer& tokenizer) {
    const trace::Settings& settings = reader.header().settings;
    ESPALIER_RETURN_IF_ERROR(check_sizes(settings, reader.place()));
    try {
        ESPALIER_ASSIGN_OR_RETURN(std::unique_ptr<engine::Target> target,
                                  make_target(settings.page_count));
        return Replayer(reader, tokenizer).run(std::move(target));
    } catch (const std::bad_alloc&) {
        return fail(ErrorKind::exhausted, "{}: the trace's settings need more memory than there is",
                    reader.place());
    }
}

}  // namespace espalier::replay
