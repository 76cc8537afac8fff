// SPDX-License-Identifier: Apache-2.0
// Numbers that a model keeps on its device besides matrices: norms, biases.
#pragma once

#include <cstdint>
#include <span>

#include "base/device.hpp"

namespace espalier {

class DeviceVector {
  public:
    DeviceVector() = default;
    static Expected<DeviceVector> upload(Device& device, std::span<const float> values) {
        DeviceVector vector;
        ESPALIER_ASSIGN_OR_RETURN(vector.memory_, device.allocate(values.size_bytes()));
        ESPALIER_RETURN_IF_ERROR(device.upload(device.stream(), vector.memory_.data(),
                                               values.data(), values.size_bytes()));
        vector.size_ = values.size();
        return vector;
    }

    const float* data() const { return memory_.as<float>(); }  // of the device
    std::size_t size() const { return size_; }
    bool empty() const { return size_ == 0; }

  private:
    Buffer memory_;
    std::size_t size_ = 0;
};

}  // namespace espalier
