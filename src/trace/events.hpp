// SPDX-License-Identifier: Apache-2.0
// What a trace holds, as plain data: a header, then submissions, cancellations and steps as they
// happened, then an end. Each struct lists its fields once, in fields(): their names in the file
// and the range of what is read. Writing, reading, comparing and the table in docs/trace.md all go
// by that list. Depends on nothing of the engine, so that files can be read and drawn without it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "accept/output_options.hpp"
#include "accept/sampling_options.hpp"
#include "base/engine_sizes.hpp"
#include "base/limits.hpp"
#include "base/scheduling_rules.hpp"
#include "base/text_identity.hpp"

namespace espalier::trace {

// Raised whenever a line changes its meaning. Format 1 differs in its header (first_format.hpp).
inline constexpr std::int32_t kFormat = 2;

// Nothing real comes near these; sums and differences of such numbers stay in 64 bits.
inline constexpr std::int64_t kMaxNumber = std::int64_t{1} << 53;
inline constexpr std::int64_t kMaxTime = std::int64_t{1} << 60;
inline constexpr std::int64_t kMaxToken = (std::int64_t{1} << 31) - 1;
inline constexpr std::int64_t kMaxRows = std::int64_t{1} << 16;
inline constexpr std::int64_t kMaxList = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxText = std::int64_t{1} << 16;     // bytes
inline constexpr std::int64_t kMaxGrammar = std::int64_t{1} << 23;  // bytes of a specification

// ---- words, in the order of their enums ---------------------------------------------------------

enum class Form : std::uint8_t { absorbed, decompressed };
inline constexpr std::array<std::string_view, 2> kForms = {"absorbed", "decompressed"};

enum class Mask : std::uint8_t { causal, tree };
inline constexpr std::array<std::string_view, 2> kMasks = {"causal", "tree"};

enum class Grant : std::uint8_t { measured, everything };
inline constexpr std::array<std::string_view, 2> kGrants = {"measured", "everything"};

enum class Reason : std::uint8_t {
    eos,
    stop_token,
    stop_string,
    length,
    bad_numbers,
    nothing_left,
    cancelled,
    deadline,
    step_failed,
    stopped,
    grammar_failed,
};
inline constexpr std::array<std::string_view, 11> kReasons = {
    "eos",       "stop_token", "stop_string", "length",  "bad_numbers",   "nothing_left",
    "cancelled", "deadline",   "step_failed", "stopped", "grammar_failed"};

enum class Close : std::uint8_t {
    finished,  // everything that happened is here
    overflow,  // the disk was too slow: what happened later is not here
};
inline constexpr std::array<std::string_view, 2> kCloses = {"finished", "overflow"};

// ---- the header ---------------------------------------------------------------------------------

struct Model {
    std::string name;
    std::string path;  // as it was asked for: a directory or ORG/NAME
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.text("name", self.name);
        visit.text("path", self.path);
    }
    bool operator==(const Model&) const = default;
};

// Parts of schedule::SchedulerOptions, and how drafts are granted.
struct Settings : EngineSizes, SchedulingRules {
    Grant grant = Grant::measured;
    std::vector<std::string> drafters;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        EngineSizes::fields(visit, base_of<EngineSizes>(self));
        SchedulingRules::fields(visit, base_of<SchedulingRules>(self));
        visit.choice("grant", self.grant, kGrants);
        visit.texts("drafters", self.drafters, 16);
    }
    bool operator==(const Settings&) const = default;

  private:
    template <typename Base, typename Self>
    static std::conditional_t<std::is_const_v<Self>, const Base, Base>& base_of(Self& self) {
        return self;
    }
};

struct Header {
    static constexpr std::string_view kKind = "header";
    std::int32_t format = kFormat;
    std::string version;  // of Espalier
    Model model;
    TextIdentity identity;
    std::int32_t threads = 0;
    Settings settings;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("format", self.format, 0, kMaxToken);
        visit.text("version", self.version);
        visit.object("model", self.model);
        visit.object("identity", self.identity);
        visit.integer("threads", self.threads, 0, kMaxRows);
        visit.object("settings", self.settings);
    }
    bool operator==(const Header&) const = default;
};

// ---- between steps ------------------------------------------------------------------------------

// Names are those of its parameters(); numbers are read as they are and checked when a request is
// made of them.
struct Sampling : accept::SamplingOptions {
    Sampling() = default;
    explicit Sampling(accept::SamplingOptions options) : SamplingOptions(std::move(options)) {}

    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        accept::SamplingOptions::parameters(Fields<Visitor>{visit}, self);
    }
    bool operator==(const Sampling&) const = default;

  private:
    template <typename Visitor>
    struct Fields {
        Visitor& visit;
        template <typename T>
        void operator()(const accept::Parameter& parameter, T& value) const {
            using Value = std::remove_const_t<T>;
            if constexpr (std::is_same_v<Value, float>)
                visit.real(parameter.name, value);
            else if constexpr (std::is_same_v<Value, std::uint64_t>)
                visit.word64(parameter.name, value);
            else if constexpr (std::is_same_v<Value, std::int64_t>)
                visit.integer(parameter.name, value, static_cast<std::int64_t>(parameter.least),
                              kMaxNumber);
            else
                visit.objects(parameter.name, value, kMaxRows);
        }
    };
};

// grammar::Specification; its kind by its name.
struct Grammar {
    std::string kind, text;
    std::vector<std::string> choices;
    bool strict = true, any_whitespace = true;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.text("kind", self.kind);
        visit.text("text", self.text, kMaxGrammar);
        visit.texts("choices", self.choices, kMaxRows, kMaxGrammar);
        visit.flag("strict", self.strict);
        visit.flag("any_whitespace", self.any_whitespace);
    }
    bool operator==(const Grammar&) const = default;
};

// A request with n choices has n consecutive numbers; they count up over the whole trace.
struct Submission {
    static constexpr std::string_view kKind = "submit";
    std::int64_t request = 0;  // of the first choice
    std::int32_t choices = 1;
    std::int64_t time = 0;
    std::int32_t priority = 0;
    std::optional<std::int64_t> deadline;
    std::uint64_t salt = 0;
    bool speculate = true;
    std::optional<std::int32_t> draft_depth, draft_width, draft_nodes;  // where prescribed
    bool logprobs = true;
    std::vector<std::int32_t> prompt;
    std::vector<std::int32_t>
        forced_output;  // what the output was made of, where it was prescribed
    Sampling sampling;
    accept::OutputOptions output;
    std::optional<Grammar> grammar;
    std::optional<accept::ReasoningRule> reasoning;
    std::optional<std::string> request_id, traceparent;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("request", self.request, 0, kMaxNumber);
        visit.maybe_text("request_id", self.request_id);
        visit.maybe_text("traceparent", self.traceparent);
        visit.integer("choices", self.choices, 1, 1024);
        visit.integer("time", self.time, -kMaxTime, kMaxTime);
        visit.integer("priority", self.priority, -kMaxToken - 1, kMaxToken);
        visit.maybe_integer("deadline", self.deadline, -kMaxTime, kMaxTime);
        visit.word64("salt", self.salt);
        visit.flag("speculate", self.speculate);
        visit.maybe_integer("draft_depth", self.draft_depth, 1, kMaxDrafts);
        visit.maybe_integer("draft_width", self.draft_width, 1, kMaxDrafts);
        visit.maybe_integer("draft_nodes", self.draft_nodes, 1, kMaxDrafts);
        visit.flag("logprobs", self.logprobs);
        visit.integers("prompt", self.prompt, kMaxList, 0, kMaxToken);
        visit.integers("replay", self.forced_output, kMaxList, 0, kMaxToken);
        visit.object("sampling", self.sampling);
        visit.object("output", self.output);
        visit.maybe_object("grammar", self.grammar);
        visit.maybe_object("reasoning", self.reasoning);
    }
    bool operator==(const Submission&) const = default;
};

struct Cancellation {
    static constexpr std::string_view kKind = "cancel";
    std::int64_t request = 0;
    std::int64_t time = 0;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("request", self.request, 0, kMaxNumber);
        visit.integer("time", self.time, -kMaxTime, kMaxTime);
    }
    bool operator==(const Cancellation&) const = default;
};

}  // namespace espalier::trace
