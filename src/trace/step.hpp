// SPDX-License-Identifier: Apache-2.0
// A step in a trace, and the trace's end. See events.hpp.
#pragma once

#include "trace/events.hpp"

namespace espalier::trace {

// Tokens that are verified: a request's next q_len in one form.
struct Row {
    std::int64_t request = 0;
    std::int64_t first_position = 0;
    std::int64_t q_len = 0;
    Form form = Form::absorbed;
    Mask mask = Mask::causal;
    std::int32_t nodes = 0;  // of its tree, root included; 0: a chunk of a prompt
    std::int64_t gathered = 0;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("request", self.request, 0, kMaxNumber);
        visit.integer("first_position", self.first_position, 0, kMaxNumber);
        visit.integer("q_len", self.q_len, 0, kMaxNumber);
        visit.choice("form", self.form, kForms);
        visit.choice("mask", self.mask, kMasks);
        visit.integer("nodes", self.nodes, 0, kMaxNodes);
        visit.integer("gathered", self.gathered, 0, kMaxNumber);
    }
    bool operator==(const Row&) const = default;
};

// The tree that a request asked to verify; its row has the first `nodes` of these. The last three
// lists have an entry per node, the root's first and 0; older traces lack them.
struct Tree {
    std::int64_t request = 0;
    std::vector<std::int32_t> tokens, parents;
    std::vector<std::int32_t> drafters = {};  // bit d: drafter d of the settings
    std::vector<std::int32_t> from = {};      // the drafter that the node is counted to
    std::vector<std::int32_t> ranks = {};     // among that drafter's choices there
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("request", self.request, 0, kMaxNumber);
        visit.integers("tokens", self.tokens, kMaxNodes, 0, kMaxToken);
        visit.integers("parents", self.parents, kMaxNodes, -1, kMaxNodes);
        visit.maybe_integers("drafters", self.drafters, kMaxNodes, 0, 255);
        visit.maybe_integers("from", self.from, kMaxNodes, 0, 255);
        visit.maybe_integers("ranks", self.ranks, kMaxNodes, 0, kMaxNodes);
    }
    bool operator==(const Tree&) const = default;
};

// The walk of a request: the nodes that it visited, and the token drawn at each.
struct Outcome {
    std::int64_t request = 0;
    std::vector<std::int32_t> path, drawn;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("request", self.request, 0, kMaxNumber);
        visit.integers("path", self.path, kMaxNodes, 0, kMaxNodes);
        visit.integers("drawn", self.drawn, kMaxNodes, -1, kMaxToken);
    }
    bool operator==(const Outcome&) const = default;
};

struct Ended {
    std::int64_t request = 0;
    Reason reason = Reason::length;
    std::int32_t which = -1;
    std::int64_t tokens = 0;  // of the output
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("request", self.request, 0, kMaxNumber);
        visit.choice("reason", self.reason, kReasons);
        visit.integer("which", self.which, -1, kMaxToken);
        visit.integer("tokens", self.tokens, 0, kMaxNumber);
    }
    bool operator==(const Ended&) const = default;
};

// Nanoseconds that a step's work took by the device's own time.
struct DeviceTimes {
    std::int64_t model = 0, sampling = 0;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("model", self.model, 0, kMaxNumber);
        visit.integer("sampling", self.sampling, 0, kMaxNumber);
    }
    bool operator==(const DeviceTimes&) const = default;
};

// Nanoseconds, one after the other from the step's begin.
struct Times {
    std::int64_t offer = 0, draft = 0, plan = 0, build = 0, forward = 0, sample = 0, commit = 0,
                 walk = 0;
    // Missing in traces older than grammars, where `build` includes it.
    std::optional<std::int64_t> mask = {};
    std::optional<std::int64_t> extend = {};  // where drafters take hidden states
    std::int64_t advance = 0, emit = 0;
    std::optional<DeviceTimes> device = {};  // beside the others; older traces lack it
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("offer", self.offer, 0, kMaxNumber);
        visit.integer("draft", self.draft, 0, kMaxNumber);
        visit.integer("plan", self.plan, 0, kMaxNumber);
        visit.integer("build", self.build, 0, kMaxNumber);
        visit.maybe_integer("mask", self.mask, 0, kMaxNumber);
        visit.integer("forward", self.forward, 0, kMaxNumber);
        visit.integer("sample", self.sample, 0, kMaxNumber);
        visit.integer("commit", self.commit, 0, kMaxNumber);
        visit.integer("walk", self.walk, 0, kMaxNumber);
        visit.maybe_integer("extend", self.extend, 0, kMaxNumber);
        visit.integer("advance", self.advance, 0, kMaxNumber);
        visit.integer("emit", self.emit, 0, kMaxNumber);
        visit.maybe_object("device", self.device);
    }
    bool operator==(const Times&) const = default;
};

struct Pages {
    std::int64_t free = 0, owned = 0, cached = 0;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("free", self.free, 0, kMaxNumber);
        visit.integer("owned", self.owned, 0, kMaxNumber);
        visit.integer("cached", self.cached, 0, kMaxNumber);
    }
    bool operator==(const Pages&) const = default;
};

struct Queue {
    std::int64_t waiting = 0, waiting_tokens = 0, prefilling = 0, running = 0;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("waiting", self.waiting, 0, kMaxNumber);
        visit.integer("waiting_tokens", self.waiting_tokens, 0, kMaxNumber);
        visit.integer("prefilling", self.prefilling, 0, kMaxNumber);
        visit.integer("running", self.running, 0, kMaxNumber);
    }
    bool operator==(const Queue&) const = default;
};

struct Step {
    static constexpr std::string_view kKind = "step";
    std::int64_t number = 0;
    std::int64_t begin = 0;
    // Windows that the settings reserve: not in this step. Not in traces of before draft models
    // that are left behind gave theirs up.
    bool unreserved = false;
    std::vector<Row> rows;
    std::vector<Tree> trees;
    std::vector<Outcome> outcomes;
    std::vector<Ended> ended;
    std::optional<std::string> failure;
    Pages pages;
    Queue queue;
    Times times;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("number", self.number, 0, kMaxNumber);
        visit.integer("begin", self.begin, -kMaxTime, kMaxTime);
        visit.maybe_flag("unreserved", self.unreserved);
        visit.objects("rows", self.rows, 2 * kMaxRows);
        visit.objects("trees", self.trees, kMaxRows);
        visit.objects("outcomes", self.outcomes, kMaxRows);
        visit.objects("ended", self.ended, kMaxList);
        visit.maybe_text("failure", self.failure);
        visit.object("pages", self.pages);
        visit.object("queue", self.queue);
        visit.object("times", self.times);
    }
    bool operator==(const Step&) const = default;
};

// The last line. Without it, the process that wrote the trace was killed.
struct End {
    static constexpr std::string_view kKind = "end";
    Close reason = Close::finished;
    std::int64_t submissions = 0, cancellations = 0, steps = 0;  // lines before this one
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.choice("reason", self.reason, kCloses);
        visit.integer("submissions", self.submissions, 0, kMaxNumber);
        visit.integer("cancellations", self.cancellations, 0, kMaxNumber);
        visit.integer("steps", self.steps, 0, kMaxNumber);
    }
    bool operator==(const End&) const = default;
};

using Event = std::variant<Submission, Cancellation, Step, End>;

}  // namespace espalier::trace
