// SPDX-License-Identifier: Apache-2.0
#include "replay/recorder.hpp"

#include <utility>

namespace espalier::replay {

Expected<std::unique_ptr<Recorder>> Recorder::open(const std::string& path,
                                                   const trace::Header& header) {
    ESPALIER_ASSIGN_OR_RETURN(std::unique_ptr<trace::Sink> file, trace::open_file(path));
    ESPALIER_ASSIGN_OR_RETURN(std::unique_ptr<trace::Writer> writer,
                              trace::Writer::create(std::move(file), header));
    return std::make_unique<Recorder>(std::move(writer));
}

void Recorder::take(trace::Submission submission, std::span<const schedule::RequestId>) {
    writer_->write(std::move(submission));
}

void Recorder::take(trace::Cancellation cancellation) { writer_->write(cancellation); }

// The writer's thread gives back what it has written, so steps soon take no memory of their own
// but for lists within lists.
void Recorder::take(trace::Step& step) {
    trace::Step next = writer_->spare_step();
    std::swap(step, next);
    writer_->write(std::move(next));
}

}  // namespace espalier::replay
