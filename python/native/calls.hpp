// SPDX-License-Identifier: Apache-2.0
// A context of the attention library, and its calls on tensors. Every method takes Python's
// (arguments, keywords), checks each tensor against the others, releases Python's lock and calls
// mla.h.
#pragma once

#include <sys/types.h>

#include <limits>

#include "structs.hpp"

namespace espalier::python {

// The types that module.cpp makes, for arguments that must be instances of them.
struct Types {
    PyObject* pages = nullptr;
    PyObject* rows = nullptr;
    PyObject* plan = nullptr;
    PyObject* context = nullptr;
};
extern Types types;

inline constexpr double kUnsetScale = std::numeric_limits<double>::quiet_NaN();
// The softmax's scale; the caller must name it.
float softmax_scale(double value);
std::int32_t dtype_of(const Array& array);  // ESPALIER_MLA_F32 …
inline void* stream_of(unsigned long long stream) { return reinterpret_cast<void*>(stream); }

// The caller's scratch memory; None: none.
struct Workspace {
    Workspace(PyObject* tensor, const Device& device);
    void* data() const { return data_of<void>(array); }
    std::uint64_t bytes() const { return array ? static_cast<std::uint64_t>(array->size(0)) : 0; }

    std::optional<Array> array;
};

class Context {
  public:
    static Context parse(PyObject* arguments, PyObject* keywords);
    Context(Context&& other) noexcept;
    Context& operator=(Context&&) = delete;
    ~Context();

    PyObject* workspace_bytes(PyObject* arguments, PyObject* keywords);
    PyObject* plan_bytes(PyObject* arguments, PyObject* keywords);
    PyObject* absorbed(PyObject* arguments, PyObject* keywords);
    PyObject* decompressed(PyObject* arguments, PyObject* keywords);
    PyObject* append(PyObject* arguments, PyObject* keywords);
    PyObject* compact(PyObject* arguments, PyObject* keywords);
    PyObject* decode_workspace_bytes(PyObject* arguments, PyObject* keywords);
    PyObject* decode(PyObject* arguments, PyObject* keywords);

  private:
    Context(espalier_mla_context* handle, const Device& device);
    // The handle, unless this process is a fork of the one whose threads it has.
    espalier_mla_context* handle() const;
    void use_plan(Plan& plan, espalier_mla_absorbed_call& call, const Rows& rows,
                  unsigned long long stream) const;
    void check_here(const char* name, const Device& device) const;
    using Size = espalier_mla_status (*)(const espalier_mla_context*,
                                         const espalier_mla_capacities*, std::uint64_t*);
    PyObject* bytes_for(Size size, const espalier_mla_capacities& most) const;

    espalier_mla_context* handle_;
    Device device_;
    pid_t owner_;
};

PyObject* pack_up_weights(PyObject* arguments, PyObject* keywords);
PyObject* page_stride(PyObject* arguments, PyObject* keywords);
PyObject* row_splits(PyObject* arguments, PyObject* keywords);

}  // namespace espalier::python
