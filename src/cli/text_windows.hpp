// SPDX-License-Identifier: Apache-2.0
// Windows of a text, read by a model: every token but a window's first is predicted from those
// before it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/engine_sizes.hpp"
#include "base/error.hpp"
#include "cli/eval_figures.hpp"
#include "model/sequence.hpp"
#include "runtime/loaded_model.hpp"
#include "text/tokenizer.hpp"

namespace espalier::cli {

// Sizes of a model that reads windows of this many tokens.
EngineSizes window_sizes(std::int64_t window);

// Logits of the current window. The model outlives it and has no other user meanwhile.
class WindowReader {
  public:
    explicit WindowReader(runtime::LoadedModel& loaded) : loaded_(loaded) {}

    std::int64_t vocabulary() const { return loaded_.model->config().vocab_size; }
    // Begins again before these tokens.
    Expected<void> begin(std::span<const std::int32_t> window);
    // The logits of the next tokens, at most as many as a step takes: [tokens, vocabulary].
    Expected<std::span<const float>> next();

  private:
    runtime::LoadedModel& loaded_;
    std::unique_ptr<model::Sequence> sequence_;
    std::span<const std::int32_t> window_;
    std::vector<float> logits_;
};

// Adds a window to the figures. against: another model with the same tokens; null: none.
Expected<void> read_window(std::span<const std::int32_t> window, const text::Tokenizer& tokenizer,
                           WindowReader& reader, WindowReader* against, EvalFigures& figures);

}  // namespace espalier::cli
