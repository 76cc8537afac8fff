// SPDX-License-Identifier: Apache-2.0
// The part of DLPack's C ABI that this module reads (dmlc/dlpack, dlpack.h 1.1): the struct behind
// a capsule named "dltensor", which every release since 0.2 lays out like this.
#pragma once

#include <cstdint>

namespace espalier::python::dlpack {

enum DeviceType : std::int32_t { kCpu = 1, kCuda = 2, kCudaHost = 3 };
enum TypeCode : std::uint8_t {
    kInt = 0,
    kUInt = 1,
    kFloat = 2,
    kBfloat = 4,
    kBool = 6,
    kFloat8E4m3fn = 10
};

struct Device {
    std::int32_t type;
    std::int32_t index;
};

struct DataType {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    std::int32_t dims;
    DataType dtype;
    std::int64_t* shape;    // [dims]
    std::int64_t* strides;  // [dims] in elements, or null: contiguous
    std::uint64_t byte_offset;
};

struct ManagedTensor {
    Tensor tensor;
    void* manager;
    void (*deleter)(ManagedTensor* self);  // or null
};
static_assert(sizeof(ManagedTensor) == 64);

}  // namespace espalier::python::dlpack
