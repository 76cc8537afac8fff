// SPDX-License-Identifier: Apache-2.0
// Writes a trace of an engine: give it to StepperParts::observer, stop the engine, then finish().
//
//   auto recorder = replay::Recorder::open(path, header);
//   parts.observer = recorder->get();
#pragma once

#include <memory>
#include <string>

#include "base/error.hpp"
#include "replay/event_maker.hpp"
#include "trace/writer.hpp"

namespace espalier::replay {

class Recorder final : public EventMaker {
  public:
    static Expected<std::unique_ptr<Recorder>> open(const std::string& path,
                                                    const trace::Header& header);
    explicit Recorder(std::unique_ptr<trace::Writer> writer) : writer_(std::move(writer)) {}

    // After the engine has stopped. What the end line says; an error if the disk refused.
    Expected<trace::End> finish() { return writer_->finish(); }

    // From any thread, while the engine runs.
    trace::WriterStatus status() const { return writer_->status(); }

  protected:
    void take(trace::Submission submission, std::span<const schedule::RequestId> ids) override;
    void take(trace::Cancellation cancellation) override;
    void take(trace::Step& step) override;

  private:
    std::unique_ptr<trace::Writer> writer_;
};

}  // namespace espalier::replay
