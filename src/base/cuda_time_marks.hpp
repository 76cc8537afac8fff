// SPDX-License-Identifier: Apache-2.0
// Events as marks of a GPU's time. A mark that is set while its stream is captured is a node of
// the graph: every replay takes it anew. Used by CudaDevice.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "base/cuda_error.hpp"
#include "base/device.hpp"

namespace espalier {

class CudaTimeMarks final : public TimeMarks {
  public:
    static Expected<std::unique_ptr<CudaTimeMarks>> create(std::size_t count) {
        std::unique_ptr<CudaTimeMarks> marks(new CudaTimeMarks);
        marks->events_.resize(count, nullptr);
        for (cudaEvent_t& event : marks->events_)
            ESPALIER_RETURN_IF_ERROR(checked(cudaEventCreate(&event), "an event"));
        return marks;
    }
    ~CudaTimeMarks() override {
        for (cudaEvent_t event : events_)
            if (event != nullptr) cudaEventDestroy(event);
    }

    Expected<void> set(Stream stream, std::size_t mark) override {
        const auto order = static_cast<cudaStream_t>(stream);
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        ESPALIER_RETURN_IF_ERROR(checked(cudaStreamIsCapturing(order, &capture), "an event"));
        const unsigned flags = capture == cudaStreamCaptureStatusNone ? cudaEventRecordDefault
                                                                      : cudaEventRecordExternal;
        return checked(cudaEventRecordWithFlags(events_.at(mark), order, flags), "an event");
    }
    Expected<double> seconds(std::size_t from, std::size_t to) const override {
        float milliseconds = 0;
        ESPALIER_RETURN_IF_ERROR(
            checked(cudaEventElapsedTime(&milliseconds, events_.at(from), events_.at(to)),
                    "the time between two events"));
        return static_cast<double>(milliseconds) * 1e-3;
    }

  private:
    CudaTimeMarks() = default;
    std::vector<cudaEvent_t> events_;
};

}  // namespace espalier
