// SPDX-License-Identifier: Apache-2.0
// Writes a trace of an engine: give it to StepperParts::observer, stop the engine, then finish().
//
//   auto recorder = replay::Recorder::open(path, *replay::describe(...));
//   parts.observer = recorder->get();
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"
#include "engine/stepper.hpp"
#include "replay/event_maker.hpp"
#include "trace/writer.hpp"

namespace espalier::replay {

// What a trace's header says about a run.
struct Run {
    const checkpoint::Checkpoint& checkpoint;
    std::string model;    // as it was asked for: a directory or ORG/NAME
    std::string variant;  // of the kernels
    int threads = 0;
    engine::StepperSettings settings;
    std::vector<std::string> drafters;          // names
    std::optional<std::string> kv_format = {};  // where it was asked for
    std::optional<std::string> weights = {};    // likewise
};
Expected<trace::Header> describe(const Run& run);

class Recorder final : public EventMaker {
  public:
    static Expected<std::unique_ptr<Recorder>> open(const std::string& path,
                                                    const trace::Header& header);
    explicit Recorder(std::unique_ptr<trace::Writer> writer) : writer_(std::move(writer)) {}

    // After the engine has stopped. What the end line says; an error if the disk refused.
    Expected<trace::End> finish() { return writer_->finish(); }

  protected:
    void take(trace::Submission submission, std::span<const schedule::RequestId> ids) override;
    void take(trace::Cancellation cancellation) override;
    void take(trace::Step& step) override;

  private:
    std::unique_ptr<trace::Writer> writer_;
};

}  // namespace espalier::replay
