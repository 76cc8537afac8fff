// SPDX-License-Identifier: Apache-2.0
// The header of traces of format 1, which named fewer of the things that a text is a function of.
// The other lines are those of format 2.
#pragma once

#include <optional>
#include <string>

#include "trace/events.hpp"

namespace espalier::trace {

struct HeaderOfFormat1 {
    static constexpr std::string_view kKind = Header::kKind;
    struct Model : trace::Model {
        std::string hash;  // TextIdentity::model
        template <typename Visitor, typename Self>
        static void fields(Visitor& visit, Self& self) {
            trace::Model::fields(visit, self);
            visit.text("hash", self.hash);
        }
    };
    std::int32_t format = 1;
    std::string version;
    Model model;
    std::string variant;                   // cuda: the one kind of GPU there was
    std::optional<std::string> kv_format;  // where it was asked for
    std::optional<std::string> weights;    // likewise
    std::int32_t threads = 0;
    std::int32_t sampling_version = 0;
    Settings settings;
    template <typename Visitor, typename Self>
    static void fields(Visitor& visit, Self& self) {
        visit.integer("format", self.format, 1, 1);
        visit.text("version", self.version);
        visit.object("model", self.model);
        visit.text("variant", self.variant);
        visit.maybe_text("kv_format", self.kv_format);
        visit.maybe_text("weights", self.weights);
        visit.integer("threads", self.threads, 0, kMaxRows);
        visit.integer("sampling_version", self.sampling_version, 0, kMaxToken);
        visit.object("settings", self.settings);
    }

    // A cache format that was not asked for, and the tokenizer's own hash, stay unknown.
    Header header() const {
        const bool gpu = variant == "cuda";
        Header made;
        made.version = version;
        made.model = model;
        made.identity = {.tokenizer = {},
                         .model = model.hash,
                         .weights = weights.value_or("own"),
                         .activations = "own",
                         .head = "own",
                         .kv_format = kv_format.value_or(""),
                         .prefill_segment = settings.prefill_segment,
                         .backend = gpu ? "cuda" : "cpu",
                         .family = gpu ? "hopper" : "cpu",
                         .variant = gpu ? "sm_90a" : variant,
                         .products_version = 1,
                         .sampling_version = sampling_version};
        made.threads = threads;
        made.settings = settings;
        return made;
    }
};

}  // namespace espalier::trace
