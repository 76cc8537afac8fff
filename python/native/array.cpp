// SPDX-License-Identifier: Apache-2.0
#include "array.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>

namespace espalier::python {
namespace {

// torch has no tensors of more; the limit keeps a damaged struct from being walked.
constexpr int kMostDims = 64;

struct TypeName {
    Type type;
    std::uint8_t code;
    std::uint8_t bits;
    const char* name;
};
constexpr TypeName kTypes[] = {
    {Type::f32, dlpack::kFloat, 32, "float32"},
    {Type::f16, dlpack::kFloat, 16, "float16"},
    {Type::bf16, dlpack::kBfloat, 16, "bfloat16"},
    {Type::e4m3, dlpack::kFloat8E4m3fn, 8, "float8_e4m3fn"},
    {Type::u8, dlpack::kUInt, 8, "uint8"},
    {Type::boolean, dlpack::kBool, 8, "bool"},
    {Type::i32, dlpack::kInt, 32, "int32"},
    {Type::i64, dlpack::kInt, 64, "int64"},
    {Type::u64, dlpack::kUInt, 64, "uint64"},
};

Type type_of(const dlpack::DataType& dtype) {
    for (const TypeName& known : kTypes)
        if (dtype.code == known.code && dtype.bits == known.bits && dtype.lanes == 1)
            return known.type;
    return Type::other;
}

std::string name_of(Type type, const dlpack::DataType& dtype) {
    for (const TypeName& known : kTypes)
        if (known.type == type) return known.name;
    constexpr const char* kCodes[] = {"int", "uint", "float", "handle", "bfloat", "complex"};
    return fmt::format("{}{}", dtype.code < std::size(kCodes) ? kCodes[dtype.code] : "type",
                       dtype.bits);
}

std::string shape_text(const std::int64_t* sizes, std::size_t dims) {
    std::string text = "[";
    for (std::size_t dim = 0; dim < dims; ++dim) {
        if (dim > 0) text += ", ";
        text += sizes[dim] == kAnySize ? "any" : fmt::to_string(sizes[dim]);
    }
    return text + "]";
}

// The capsule that tensor.__dlpack__(stream=-1) makes. -1: the tensor's and the call's work are
// ordered by the stream both are on, so no event is wanted, which a graph capture could not take.
Ref capsule_of(PyObject* tensor, const char* name) {
    if (!PyObject_HasAttrString(tensor, "__dlpack__")) {
        PyErr_Format(PyExc_TypeError, "%s must be a torch tensor, is %R", name,
                     reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
        throw Raised{};
    }
    const Ref method(PyObject_GetAttrString(tensor, "__dlpack__"));
    const Ref nothing(PyTuple_New(0));
    const Ref keywords(Py_BuildValue("{s:i}", "stream", -1));
    return Ref(PyObject_Call(method.get(), nothing.get(), keywords.get()));
}

Device device_of(const dlpack::Device& device, const char* name) {
    switch (device.type) {
        case dlpack::kCpu:
        case dlpack::kCudaHost:  // pinned memory of the host
            return {.cuda = false, .index = 0};
        case dlpack::kCuda:
            return {.cuda = true, .index = device.index};
        default:
            refuse(ESPALIER_MLA_UNSUPPORTED,
                   "{} lies on a device that DLPack numbers {}: the CPU and CUDA are possible",
                   name, device.type);
    }
}

}  // namespace

std::string name_of(const Device& device) {
    return device.cuda ? fmt::format("cuda:{}", device.index) : "cpu";
}

Array::Array(PyObject* tensor, const char* name) : name_(name) {
    const Ref capsule = capsule_of(tensor, name);
    if (!PyCapsule_IsValid(capsule.get(), "dltensor"))
        refuse(ESPALIER_MLA_INVALID, "{}: __dlpack__ gave no capsule named dltensor", name);
    managed_ = static_cast<dlpack::ManagedTensor*>(PyCapsule_GetPointer(capsule.get(), "dltensor"));
    PyCapsule_SetName(capsule.get(), "used_dltensor");  // from here on ours to free
    try {
        check_sane();
        type_ = type_of(this->tensor().dtype);
        device_ = device_of(this->tensor().device, name);
    } catch (...) {
        free();
        throw;
    }
}

Array::Array(Array&& other) noexcept
    : managed_(std::exchange(other.managed_, nullptr)),
      name_(other.name_),
      type_(other.type_),
      device_(other.device_) {}

Array::~Array() { free(); }

// The tensor's owner may run Python code, which must not see the exception on its way.
void Array::free() noexcept {
    if (managed_ == nullptr || managed_->deleter == nullptr) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    managed_->deleter(managed_);
    PyErr_Restore(type, value, trace);
    managed_ = nullptr;
}

// Sizes and strides that 64-bit arithmetic can walk, at an address that suits the type.
void Array::check_sane() const {
    const dlpack::Tensor& t = tensor();
    if (t.dims < 0 || t.dims > kMostDims || (t.dims > 0 && t.shape == nullptr))
        refuse(ESPALIER_MLA_INVALID, "{} has {} dimensions", name_, t.dims);
    constexpr std::int64_t kMost = std::int64_t{1} << 60;
    std::int64_t elements = 1;
    std::int64_t reach = 0;
    for (int dim = 0; dim < t.dims; ++dim) {
        if (size(dim) < 0) refuse(ESPALIER_MLA_INVALID, "{} has size {}", name_, size(dim));
        std::int64_t step = 0;
        if (stride(dim) < 0 || __builtin_mul_overflow(elements, size(dim), &elements) ||
            __builtin_mul_overflow(stride(dim), std::max<std::int64_t>(size(dim) - 1, 0), &step) ||
            __builtin_add_overflow(reach, step, &reach) || elements > kMost || reach > kMost)
            refuse(ESPALIER_MLA_INVALID, "{} has {} elements {} apart in dimension {}: too many",
                   name_, size(dim), stride(dim), dim);
    }
    if (elements == 0) return;
    if (t.data == nullptr) refuse(ESPALIER_MLA_INVALID, "{} has no memory", name_);
    const std::int64_t bytes = element_bytes();
    const auto behind =
        bytes == 0 ? 0
                   : reinterpret_cast<std::uintptr_t>(address()) % static_cast<std::size_t>(bytes);
    if (behind != 0)
        refuse(ESPALIER_MLA_INVALID, "{} lies {} bytes behind a multiple of {}", name_, behind,
               bytes);
}

void* Array::address() const {
    if (tensor().data == nullptr) return nullptr;
    return static_cast<std::byte*>(tensor().data) + tensor().byte_offset;
}

std::int64_t Array::stride(int dim) const {
    if (tensor().strides != nullptr) return tensor().strides[dim];
    std::int64_t stride = 1;
    for (int inner = dim + 1; inner < dims(); ++inner) stride *= size(inner);
    return stride;
}

std::int64_t Array::elements() const {
    std::int64_t count = 1;
    for (int dim = 0; dim < dims(); ++dim) count *= size(dim);
    return count;
}

std::int64_t Array::span_bytes() const {
    if (elements() == 0) return 0;
    std::int64_t last = 0;
    for (int dim = 0; dim < dims(); ++dim) last += (size(dim) - 1) * stride(dim);
    return (last + 1) * element_bytes();
}

bool Array::contiguous() const {
    if (elements() == 0) return true;
    std::int64_t expected = 1;
    for (int dim = dims() - 1; dim >= 0; --dim) {
        if (size(dim) > 1 && stride(dim) != expected) return false;
        expected *= size(dim);
    }
    return true;
}

std::string Array::describe() const {
    return fmt::format("{} {} on {}", name_of(type_, tensor().dtype),
                       shape_text(tensor().shape, static_cast<std::size_t>(dims())),
                       python::name_of(device_));
}

void Array::expect(std::initializer_list<Type> types, std::initializer_list<std::int64_t> shape,
                   const Device& device) const {
    bool fits = std::find(types.begin(), types.end(), type_) != types.end() && device_ == device &&
                static_cast<std::size_t>(dims()) == shape.size();
    for (int dim = 0; fits && dim < dims(); ++dim) {
        const std::int64_t wanted = shape.begin()[dim];
        fits = wanted == kAnySize || wanted == size(dim);
    }
    if (fits) return;
    std::string wanted;
    for (const Type type : types) wanted += (wanted.empty() ? "" : " or ") + name_of(type, {});
    refuse(ESPALIER_MLA_INVALID, "{} is {}, wanted is {} {} on {}", name_, describe(), wanted,
           shape_text(shape.begin(), shape.size()), python::name_of(device));
}

void Array::expect_contiguous(std::initializer_list<Type> types,
                              std::initializer_list<std::int64_t> shape,
                              const Device& device) const {
    expect(types, shape, device);
    if (contiguous()) return;
    refuse(ESPALIER_MLA_INVALID, "{} of shape {} is not contiguous: its strides are {}", name_,
           shape_text(tensor().shape, static_cast<std::size_t>(dims())),
           shape_text(tensor().strides, static_cast<std::size_t>(dims())));
}

std::optional<Array> optional_array(PyObject* tensor, const char* name) {
    if (tensor == nullptr || tensor == Py_None) return std::nullopt;
    return std::optional<Array>(std::in_place, tensor, name);
}

void Footprint::add(const Array& array, bool written) {
    const auto* begin = array.data<const std::byte>();
    if (array.span_bytes() > 0)
        spans_.push_back({array.name(), begin, begin + array.span_bytes(), written});
}

void Footprint::check() const {
    const std::less<const std::byte*> before;
    for (std::size_t i = 0; i < spans_.size(); ++i)
        for (std::size_t j = i + 1; j < spans_.size(); ++j) {
            const Span& a = spans_[i];
            const Span& b = spans_[j];
            if ((a.written || b.written) && before(a.begin, b.end) && before(b.begin, a.end))
                refuse(ESPALIER_MLA_INVALID, "{} and {} overlap in memory", a.name, b.name);
        }
}

}  // namespace espalier::python
