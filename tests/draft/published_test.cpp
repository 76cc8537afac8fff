// SPDX-License-Identifier: Apache-2.0
// Drafts of an engine against the published definition (published.hpp), node by node: below every
// node of 200 drafts of each kind stand the definition's best tokens, in its order and with its
// probabilities. Texts begin at their first token: short ones, prefixes shared up to page borders,
// chunks, preemption. Draft layers begin as NaN, so that a slot that is read must have been
// written.
#include "draft/published.hpp"

#include <gtest/gtest.h>

#include <map>

#include "draft/tiny_drafts.hpp"
#include "schedule/inspection.hpp"

namespace espalier::draft {
namespace {

using engine::Request;
using engine::StepperSettings;
using published::Row;
using Tokens = std::vector<std::int32_t>;

constexpr std::int64_t kDrafts = 200;

// f32 against double: logits of up to 7 differ by ~1e-5, and so does a probability of itself; two
// that lie no further apart may stand in either order.
constexpr double kTolerance = 1e-4;

checkpoint::SyntheticModel preset() {
    checkpoint::SyntheticModel made = tiny_preset("tiny-v3");
    made.config.yarn.reset();
    made.dtype = DType::f32;
    return made;
}

// The target's state of a token, and the definition's result for it; by the text up to the token
// and including it.
struct Known {
    Row state;
    published::Key key;  // from the second token on
};
using Texts = std::map<Tokens, Known>;

struct Tally {
    std::int64_t drafts = 0, nodes = 0, short_drafts = 0, behind_pages = 0;
};

// A draft model that is looked at: its taps go to the definition, its drafts are compared with it.
class Observed final : public speculate::Drafter {
  public:
    Observed(std::unique_ptr<ModelDrafter> inner, const published::Draft& definition,
             std::vector<Matrix> taps, Tally& tally)
        : inner_(std::move(inner)),
          definition_(definition),
          taps_(std::move(taps)),
          tally_(tally) {}

    std::string_view name() const override { return inner_->name(); }
    speculate::DrafterNeeds needs() const override { return inner_->needs(); }
    void begin(RequestSlot request, std::span<const TokenId> prompt,
               std::int64_t max_tokens) override {
        texts_[request].assign(prompt.begin(), prompt.end());
        inner_->begin(request, prompt, max_tokens);
    }
    void end(RequestSlot request) override { inner_->end(request); }
    void preempted(RequestSlot request) override { inner_->preempted(request); }
    void forget() override { inner_->forget(); }
    bool follows(RequestSlot request, std::int64_t root_position) const override {
        return inner_->follows(request, root_position);
    }
    void commit(std::span<const speculate::Commitment> commitments) override {
        inner_->commit(commitments);
    }
    Expected<void> extend(std::span<const speculate::Extension> extensions) override {
        for (const speculate::Extension& one : extensions) note(one);
        return inner_->extend(extensions);
    }
    Expected<void> propose(std::span<const speculate::DraftCall> calls) override {
        ESPALIER_RETURN_IF_ERROR(inner_->propose(calls));
        for (const speculate::DraftCall& call : calls)
            if (call.proposal->tree.size() > 1) compare(call);
        return {};
    }

  private:
    void note(const speculate::Extension& extension) {
        Tokens& text = texts_[extension.request];
        const auto first = static_cast<std::size_t>(extension.first_position);
        text.resize(first);
        for (std::size_t i = 0; i < extension.tokens.size(); ++i) {
            Row taps;
            for (const Matrix& source : taps_) {
                const float* from = source.row<float>(extension.taps[i]);
                taps.insert(taps.end(), from, from + source.cols);
            }
            const std::int32_t token = extension.tokens[i];
            const Known* const before = text.empty() ? nullptr : &known_.at(text);
            const auto position = static_cast<std::int64_t>(text.size());
            text.push_back(token);
            known_[text] = {definition_.state_of(taps),
                            before == nullptr ? published::Key()
                                              : definition_.key(token, before->state, position)};
        }
    }

    void compare(const speculate::DraftCall& call) {
        const speculate::Tree& tree = call.proposal->tree;
        Tokens text = texts_.at(call.request);
        text.resize(static_cast<std::size_t>(call.root_position));
        std::vector<const published::Key*> history;
        for (std::size_t length = 2; length <= text.size(); ++length)
            history.push_back(
                &known_.at(Tokens(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(length)))
                     .key);
        const auto nodes = static_cast<std::size_t>(tree.size());
        std::vector<published::Key> keys(nodes);
        std::vector<Row> states(nodes);
        for (std::int32_t node = 0; node < tree.size(); ++node) {
            const auto index = static_cast<std::size_t>(node);
            const auto parent = static_cast<std::size_t>(std::max(tree.parent(node), 0));
            const Row& before = node == 0 ? known_.at(text).state : states[parent];
            const Tokens children = children_of(tree, node);
            if (children.empty()) continue;
            const std::int64_t position = call.root_position + tree.depth(node);
            keys[index] = definition_.key(tree.token(node), before, position);
            std::vector<const published::Key*> seen = history;
            for (std::size_t ancestor = 0; ancestor <= index; ++ancestor)
                if ((tree.words()[index] >> ancestor & 1) != 0) seen.push_back(&keys[ancestor]);
            auto [logits, state] = definition_.run(tree.token(node), before, position, seen);
            states[index] = state;
            expect_best(call, node, children, logits);
        }
        tally_.drafts += 1;
        tally_.short_drafts += call.root_position <= 5 ? 1 : 0;
        tally_.behind_pages += call.root_position > 64 ? 1 : 0;
    }

    static Tokens children_of(const speculate::Tree& tree, std::int32_t node) {
        Tokens children;
        for (std::int32_t other = node + 1; other < tree.size(); ++other)
            if (tree.parent(other) == node) children.push_back(tree.token(other));
        return children;
    }

    void expect_best(const speculate::DraftCall& call, std::int32_t node, const Tokens& children,
                     Row logits) {
        for (const std::int32_t token : {engine::kPoisonToken, engine::kQuietPoisonToken})
            logits[static_cast<std::size_t>(token)] -= 100;  // plain_request()
        const double largest = *std::max_element(logits.begin(), logits.end());
        double sum = 0;
        for (const double logit : logits) sum += std::exp(logit - largest);
        const std::vector<std::size_t> wanted = published::best(logits, children.size());
        for (std::size_t rank = 0; rank < children.size(); ++rank, ++tally_.nodes) {
            const auto token = static_cast<std::size_t>(children[rank]);
            const auto child =
                static_cast<std::size_t>(call.proposal->tree.child(node, children[rank]));
            const double want = std::exp(logits[token] - largest) / sum;
            EXPECT_NEAR(logits[token], logits[wanted[rank]], kTolerance)
                << name() << ", root at " << call.root_position << ", rank " << rank << " below "
                << node;
            EXPECT_NEAR(call.proposal->score[child], want, kTolerance * want)
                << name() << ", root at " << call.root_position << ", node " << child;
        }
    }

    std::unique_ptr<ModelDrafter> inner_;
    const published::Draft& definition_;
    std::vector<Matrix> taps_;
    Tally& tally_;
    std::map<RequestSlot, Tokens> texts_;
    Texts known_;
};

// Pages for half of what is asked at once, prompts in chunks.
StepperSettings tight_settings() {
    StepperSettings settings = engine::roomy_settings();
    settings.schedule.page_count = 1 + 7;
    settings.schedule.max_model_len = 512;
    settings.schedule.max_rows = 4;
    settings.schedule.prompt_quantum = 24;
    settings.schedule.max_step_tokens = 4 + 24 + 100;
    settings.schedule.max_step_gather = 100;
    return settings;
}

// Lengths as they come, and prompts that go on behind others' pages.
std::vector<Request> texts(std::uint64_t round) {
    // These two outgrow the pages.
    std::vector<Request> requests = {engine::plain_request(200, 80, 100 * round + 97),
                                     engine::plain_request(150, 100, 100 * round + 98)};
    for (const std::size_t length : {1, 2, 3, 1, 2, 5, 17, 63, 64, 65, 66, 40, 4, 1, 2, 127, 30})
        requests.push_back(engine::plain_request(length, 12, 100 * round + requests.size()));
    for (const std::size_t length : {64, 65, 66, 128, 129, 130, 131}) {
        Request request = engine::plain_request(200, 10, 100 * round + 99);
        request.prompt.resize(length);
        requests.push_back(request);
    }
    return requests;
}

struct Definitions {
    std::shared_ptr<const checkpoint::Checkpoint> target, draft;
    published::Mtp mtp{*target};
    published::Eagle3 eagle3{*draft, *target};
};

TEST(PublishedDefinition, GivesTheSameDraftsNodeByNode) {
    const TinyDrafts tiny = make_tiny_drafts(model::cpu_machine(1, best_cpu_variant()), preset());
    const Definitions definitions{tiny.files, tiny.draft_files};
    std::map<std::string_view, Tally> tallies;
    DraftingEngine engine(
        tiny, tight_settings(), {}, {}, 0,
        [&](std::unique_ptr<ModelDrafter> drafter,
            const model::Taps& taps) -> std::unique_ptr<speculate::Drafter> {
            const bool mtp = drafter->name() == "mtp";
            const published::Draft& definition =
                mtp ? static_cast<const published::Draft&>(definitions.mtp) : definitions.eagle3;
            std::vector<Matrix> sources(taps.residual.begin(), taps.residual.end());
            if (mtp) sources = {taps.final_state};
            Tally& tally = tallies[drafter->name()];
            return std::make_unique<Observed>(std::move(drafter), definition, sources, tally);
        });
    engine.poison_drafts();
    for (std::uint64_t round = 0;
         tallies.empty() ||
         std::ranges::any_of(tallies, [](const auto& one) { return one.second.drafts < kDrafts; });
         ++round) {
        ASSERT_LT(round, 20u);
        for (const Request& request : texts(round)) {
            engine.harness->submit(request);
            engine.harness->stepper->step();
        }
        engine.harness->run();
    }
    const schedule::Totals& totals = engine.harness->stepper->scheduler().totals();
    EXPECT_GT(totals.preemptions, 0);
    EXPECT_GT(totals.hit_tokens, 0);
    for (const auto& [name, tally] : tallies) {
        EXPECT_GE(tally.drafts, kDrafts) << name;
        EXPECT_GT(tally.nodes, 2 * kDrafts) << name;
        EXPECT_GT(tally.short_drafts, 20) << name;
        EXPECT_GT(tally.behind_pages, 20) << name;
        RecordProperty(std::string(name) + "_nodes", static_cast<int>(tally.nodes));
    }
}

}  // namespace
}  // namespace espalier::draft
