// SPDX-License-Identifier: Apache-2.0
#include "cli/text_windows.hpp"

#include <algorithm>

namespace espalier::cli {

EngineSizes window_sizes(std::int64_t window) {
    EngineSizes sizes;
    sizes.max_step_tokens = sizes.max_step_gather = std::min<std::int64_t>(window, 256);
    sizes.max_model_len = window;
    return sizes;
}

Expected<void> WindowReader::begin(std::span<const std::int32_t> window) {
    window_ = window;
    const auto length = static_cast<std::int64_t>(window.size());
    ESPALIER_ASSIGN_OR_RETURN(model::Sequence sequence,
                              model::Sequence::create(*loaded_.model, length, length));
    sequence_ = std::make_unique<model::Sequence>(std::move(sequence));
    return {};
}

Expected<std::span<const float>> WindowReader::next() {
    const auto first = static_cast<std::size_t>(sequence_->length());
    const auto count = std::min(static_cast<std::size_t>(loaded_.model->limits().max_gather),
                                window_.size() - first);
    ESPALIER_ASSIGN_OR_RETURN(const model::Fed fed,
                              sequence_->feed(*loaded_.model, window_.subspan(first, count),
                                              static_cast<std::int64_t>(count)));
    if (fed.nonfinite)
        return fail(ErrorKind::invalid,
                    "the model computed a NaN or infinity after token {} of a window", first);
    logits_.resize(count * static_cast<std::size_t>(vocabulary()));
    Device& device = *loaded_.device;
    ESPALIER_RETURN_IF_ERROR(device.download(device.stream(), logits_.data(), fed.logits.data,
                                             logits_.size() * sizeof(float)));
    return std::span<const float>(logits_);
}

Expected<void> read_window(std::span<const std::int32_t> window, const text::Tokenizer& tokenizer,
                           WindowReader& reader, WindowReader* against, EvalFigures& figures) {
    ESPALIER_RETURN_IF_ERROR(reader.begin(window));
    if (against != nullptr) ESPALIER_RETURN_IF_ERROR(against->begin(window));
    const auto vocabulary = static_cast<std::size_t>(reader.vocabulary());
    for (std::size_t first = 0; first < window.size();) {
        ESPALIER_ASSIGN_OR_RETURN(const std::span<const float> logits, reader.next());
        std::span<const float> other;
        if (against != nullptr) {
            ESPALIER_ASSIGN_OR_RETURN(other, against->next());
        }
        const std::size_t count = logits.size() / vocabulary;
        for (std::size_t i = 0; i < count && first + i + 1 < window.size(); ++i) {
            const std::int32_t token = window[first + i + 1];
            const auto row = logits.subspan(i * vocabulary, vocabulary);
            figures.add(row, token, tokenizer.token_bytes(token).size());
            if (!other.empty()) figures.compare(row, other.subspan(i * vocabulary, vocabulary));
        }
        first += count;
    }
    return {};
}

}  // namespace espalier::cli
