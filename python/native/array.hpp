// SPDX-License-Identifier: Apache-2.0
// A tensor of the caller, taken over by DLPack: its memory stays alive as long as the Array does.
// Nothing a tensor says of itself is trusted before expect() has compared it with what is wanted.
#pragma once

#include <initializer_list>
#include <optional>
#include <vector>

#include "dlpack.hpp"
#include "python_api.hpp"

namespace espalier::python {

enum class Type { f32, f16, bf16, e4m3, u8, boolean, i32, i64, u64, other };

struct Device {
    bool cuda = false;
    std::int32_t index = 0;
    bool operator==(const Device&) const = default;
};
std::string name_of(const Device& device);  // "cpu", "cuda:0"

inline constexpr std::int64_t kAnySize = -1;

class Array {
  public:
    // `name` says in errors which argument it is: a literal.
    Array(PyObject* tensor, const char* name);
    Array(Array&& other) noexcept;
    Array& operator=(Array&&) = delete;
    ~Array();

    const char* name() const { return name_; }
    Type type() const { return type_; }
    Device device() const { return device_; }
    int dims() const { return tensor().dims; }
    std::int64_t size(int dim) const { return tensor().shape[dim]; }
    std::int64_t stride(int dim) const;  // elements
    std::int64_t element_bytes() const { return tensor().dtype.bits / 8; }
    std::int64_t elements() const;

    template <typename T = void>
    T* data() const {
        return static_cast<T*>(address());
    }
    // From the first byte to the last that an element lies in.
    std::int64_t span_bytes() const;

    // Refuses anything but one of these types, this shape (kAnySize: any) and this device.
    void expect(std::initializer_list<Type> types, std::initializer_list<std::int64_t> shape,
                const Device& device) const;
    // That, in one piece.
    void expect_contiguous(std::initializer_list<Type> types,
                           std::initializer_list<std::int64_t> shape, const Device& device) const;
    std::string describe() const;  // "int32 [4, 2] on cpu"

  private:
    const dlpack::Tensor& tensor() const { return managed_->tensor; }
    void* address() const;
    void check_sane() const;
    bool contiguous() const;
    void free() noexcept;

    dlpack::ManagedTensor* managed_ = nullptr;
    const char* name_;
    Type type_ = Type::other;
    Device device_;
};

// None stands for nothing.
std::optional<Array> optional_array(PyObject* tensor, const char* name);
template <typename T>
T* data_of(const std::optional<Array>& array) {
    return array ? array->template data<T>() : nullptr;
}

// The memory that a call touches: what it writes may not overlap anything else of it. A workspace
// in a block table's memory would otherwise change page ids after they were checked.
class Footprint {
  public:
    void reads(const Array& array) { add(array, false); }
    void writes(const Array& array) { add(array, true); }
    void reads(const std::optional<Array>& array) {
        if (array) reads(*array);
    }
    void writes(const std::optional<Array>& array) {
        if (array) writes(*array);
    }
    void check() const;

  private:
    struct Span {
        const char* name;
        const std::byte* begin;
        const std::byte* end;
        bool written;
    };
    void add(const Array& array, bool written);

    std::vector<Span> spans_;
};

}  // namespace espalier::python
