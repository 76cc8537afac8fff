// SPDX-License-Identifier: Apache-2.0
#include "ops/sampling_builder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "base/check.hpp"

namespace espalier::ops {
namespace {

template <typename T>
constexpr std::int64_t kWords = sizeof(T) / sizeof(std::uint32_t);

void check_token(std::int32_t token, std::int64_t vocabulary, const char* name) {
    CHECK(token >= 0 && token < vocabulary, "{}: token {} of {}", name, token, vocabulary);
}

}  // namespace

std::int64_t SamplingCapacity::count_stride() const { return std::min(vocabulary, max_context); }

std::int64_t SamplingCapacity::list_words() const {
    return requests *
               (biases * kWords<LogitBias> + banned + kMaxNodes * kWords<CountUpdate>)+nodes *
               kMaxDrafts * kWords<TokenCount> +
           masks * mask_words();
}

std::size_t SamplingCapacity::batch_bytes() const {
    SamplingBatch batch;
    return place_arrays(batch, nullptr, nodes) +
           static_cast<std::size_t>(list_words()) * sizeof(std::uint32_t);
}

Expected<SamplingBatchBuilder> SamplingBatchBuilder::create(const SamplingCapacity& capacity) {
    if (capacity.vocabulary < 1 || capacity.vocabulary > kMaxVocabulary)
        return fail(ErrorKind::unsupported, "a vocabulary of {}, at least 1 and at most {}",
                    capacity.vocabulary, kMaxVocabulary);
    // Places of lists and counts are 32-bit numbers.
    if (capacity.list_words() > std::numeric_limits<std::int32_t>::max() ||
        capacity.counts() > std::numeric_limits<std::uint32_t>::max())
        return fail(ErrorKind::exhausted,
                    "draws of {} nodes of {} requests need lists of {} words and {} counts, at "
                    "most {} and {}",
                    capacity.nodes, capacity.requests, capacity.list_words(), capacity.counts(),
                    std::numeric_limits<std::int32_t>::max(),
                    std::numeric_limits<std::uint32_t>::max());
    return SamplingBatchBuilder(capacity);
}

SamplingBatchBuilder::SamplingBatchBuilder(const SamplingCapacity& capacity)
    : capacity_(capacity),
      memory_(std::make_unique_for_overwrite<CacheLine[]>(
          (capacity.batch_bytes() + sizeof(CacheLine) - 1) / sizeof(CacheLine))) {
    const auto requests = static_cast<std::size_t>(capacity.requests);
    loads_.reserve(requests);
    updates_.reserve(requests * kMaxNodes);
    slots_.resize(requests);
    begin(0);
}

void SamplingBatchBuilder::begin(std::int64_t nodes) {
    CHECK(nodes >= 0 && nodes <= capacity_.nodes, "{} nodes, at most {}", nodes, capacity_.nodes);
    place_arrays(host_, memory(), nodes);
    host_.vocabulary = capacity_.vocabulary;
    added_ = 0;
    masks_ = 0;
    words_ = 0;
    alternatives_ = 0;
    loads_.clear();
    updates_.clear();
    ++step_;
}

std::uint32_t SamplingBatchBuilder::take_words(std::size_t words) {
    const auto capacity = static_cast<std::size_t>(capacity_.list_words());
    CHECK(words <= capacity - words_, "{} words of lists beside {} of {}", words, words_, capacity);
    return static_cast<std::uint32_t>(std::exchange(words_, words_ + words));
}

template <typename T>
ListRange SamplingBatchBuilder::append(std::span<const T> entries) {
    const std::uint32_t first = take_words(entries.size() * kWords<T>);
    if (!entries.empty()) std::memcpy(host_.lists + first, entries.data(), entries.size_bytes());
    return {first, static_cast<std::uint32_t>(entries.size())};
}

ListRange SamplingBatchBuilder::add_biases(std::span<const LogitBias> biases) {
    CHECK(std::ssize(biases) <= capacity_.biases, "{} biases, at most {}", biases.size(),
          capacity_.biases);
    for (const LogitBias& entry : biases) {
        check_token(entry.token, capacity_.vocabulary, "logit bias");
        CHECK(std::isfinite(entry.bias), "a logit bias of {}", entry.bias);
    }
    return append(biases);
}

ListRange SamplingBatchBuilder::add_banned(std::span<const std::int32_t> tokens) {
    CHECK(std::ssize(tokens) <= capacity_.banned, "{} banned tokens, at most {}", tokens.size(),
          capacity_.banned);
    for (const std::int32_t token : tokens) check_token(token, capacity_.vocabulary, "banned");
    return append(tokens);
}

std::span<std::uint32_t> SamplingBatchBuilder::add_mask(std::int32_t& place) {
    CHECK(masks_++ < capacity_.masks, "more than {} masks", capacity_.masks);
    const auto words = static_cast<std::size_t>(capacity_.mask_words());
    place = static_cast<std::int32_t>(take_words(words));
    return {host_.lists + place, words};
}

void SamplingBatchBuilder::check_counts(std::span<const TokenCount> counts) const {
    for (const TokenCount& count : counts) check_token(count.token, capacity_.vocabulary, "counts");
}

// Slot of the request's counts, or the one where they will be: the place that was longest unused.
std::size_t SamplingBatchBuilder::slot_of(std::int64_t request) {
    std::size_t oldest = 0;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
        const std::size_t slot = (next_slot_ + i) % slots_.size();
        if (slots_[slot].request == request) return slot;
        if (slots_[slot].step < slots_[oldest].step) oldest = slot;
    }
    CHECK(oldest < slots_.size() && slots_[oldest].step < step_,
          "counts of more than {} requests in a step", slots_.size());
    slots_[oldest] = {};
    return oldest;
}

// Brings the device's copy up to date: by what changed, or as a whole. It is taken to get there:
// the requests of a step that was not uploaded end with it.
void SamplingBatchBuilder::update(std::size_t index, const CommittedCounts& counts) {
    CountSlot& slot = slots_[index];
    const auto place =
        static_cast<std::uint32_t>(static_cast<std::int64_t>(index) * capacity_.count_stride());
    if (slot.entries == 0 || counts.changes - slot.changes > std::ssize(counts.recent)) {
        check_counts(counts.entries);
        loads_.push_back({place, counts.entries});
        return;
    }
    for (std::int64_t change = slot.changes; change < counts.changes; ++change) {
        const auto recent = static_cast<std::size_t>(change) % counts.recent.size();
        const auto entry = static_cast<std::uint32_t>(counts.recent[recent]);
        updates_.push_back({place + entry, counts.entries[entry]});
        check_token(updates_.back().count.token, capacity_.vocabulary, "counts");
    }
}

ListRange SamplingBatchBuilder::add_counts(std::int64_t request, const CommittedCounts& counts) {
    CHECK(request >= 0 && std::ssize(counts.entries) <= capacity_.count_stride(),
          "request {} counts {} tokens, at most {}", request, counts.entries.size(),
          capacity_.count_stride());
    CHECK(std::ssize(counts.recent) <= kMaxNodes, "{} recent changes, at most {}",
          counts.recent.size(), kMaxNodes);
    const std::size_t slot = slot_of(request);
    CHECK(slots_[slot].step < step_, "counts of request {} twice in a step", request);
    update(slot, counts);
    slots_[slot] = {request, step_, counts.entries.size(), counts.changes};
    next_slot_ = (slot + 1) % slots_.size();
    return {static_cast<std::uint32_t>(static_cast<std::int64_t>(slot) * capacity_.count_stride()),
            static_cast<std::uint32_t>(counts.entries.size())};
}

ListRange SamplingBatchBuilder::add(const NodeRequest& node) {
    const DrawParameters& parameters = node.parameters;
    CHECK(added_ < host_.nodes, "more than the step's {} nodes", host_.nodes);
    CHECK(node.alternatives >= 0 && node.alternatives <= kMaxTopLogprobs,
          "{} alternatives, at most {}", node.alternatives, kMaxTopLogprobs);
    CHECK(node.changed.size() <= static_cast<std::size_t>(kMaxDrafts),
          "{} changed counts, at most {}", node.changed.size(), kMaxDrafts);
    CHECK(node.wanted >= kDraw && node.wanted < capacity_.vocabulary, "token {} wanted of {}",
          node.wanted, capacity_.vocabulary);
    CHECK(parameters.repetition_penalty > 0.0f && std::isfinite(parameters.repetition_penalty),
          "a repetition penalty of {}", parameters.repetition_penalty);
    CHECK(std::isfinite(parameters.frequency_penalty) && std::isfinite(parameters.presence_penalty),
          "a frequency penalty of {}, a presence penalty of {}", parameters.frequency_penalty,
          parameters.presence_penalty);
    check_counts(node.changed);

    const std::int64_t g = added_++;
    host_.parameters[g] = parameters;
    host_.position[g] = node.position;
    host_.choice[g] = node.choice;
    host_.wanted[g] = node.wanted;
    host_.logprob[g] = node.logprob ? 1 : 0;
    host_.biases[g] = node.biases;
    host_.banned[g] = node.banned;
    host_.changed[g] = append(node.changed);
    host_.committed[g] = node.committed;
    host_.allowed[g] = node.allowed;
    host_.reported[g] = {static_cast<std::uint32_t>(alternatives_),
                         static_cast<std::uint32_t>(node.alternatives)};
    alternatives_ += node.alternatives;
    return host_.reported[g];
}

void SamplingBatchBuilder::finish() {
    *host_.updates = append(std::span<const CountUpdate>(updates_));
    for (std::int64_t g = added_; g < host_.nodes; ++g) {
        host_.parameters[g] = {};
        host_.wanted[g] = kPad;
        host_.allowed[g] = -1;
        host_.biases[g] = host_.banned[g] = host_.changed[g] = host_.committed[g] =
            host_.reported[g] = {};
    }
    used_bytes_ = static_cast<std::size_t>(
        reinterpret_cast<const std::byte*>(host_.lists + words_) - memory());
}

}  // namespace espalier::ops
