// SPDX-License-Identifier: Apache-2.0
// What every file of the module shares: Python's limited API (one binary for 3.10 and all later
// versions), owned references, and how a refusal becomes a Python exception. Inside the module
// errors are C++ exceptions; none leaves guarded().
#pragma once

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030A0000
#include <Python.h>
#include <fmt/format.h>

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "espalier/mla.h"

namespace espalier::python {

// A Python exception is set already.
struct Raised {};

// Becomes espalier.Error with this sentence and the status' name.
struct Refused {
    espalier_mla_status status;
    std::string sentence;
};

template <typename... Args>
[[noreturn]] void refuse(espalier_mla_status status, fmt::format_string<Args...> format,
                         Args&&... args) {
    throw Refused{status, fmt::format(format, std::forward<Args>(args)...)};
}

// Sets espalier.Error (module.cpp).
void set_error(const Refused& refused) noexcept;

// An owned reference; null means that Python has raised.
class Ref {
  public:
    explicit Ref(PyObject* owned) : object_(owned) {
        if (owned == nullptr) throw Raised{};
    }
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref&&) = delete;
    ~Ref() { Py_XDECREF(object_); }

    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }

  private:
    PyObject* object_;
};

// body: PyObject*() with a new reference. Nothing but Python's own way of failing comes out.
template <typename Body>
PyObject* guarded(Body body) noexcept {
    try {
        return body();
    } catch (const Raised&) {
    } catch (const Refused& refused) {
        set_error(refused);
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_SystemError, error.what());
    }
    return nullptr;
}

inline PyObject* none() {
    Py_INCREF(Py_None);
    return Py_None;
}

// call: espalier_mla_status(). Other Python threads run meanwhile.
template <typename Call>
void run_unlocked(Call call) {
    PyThreadState* const thread = PyEval_SaveThread();
    const espalier_mla_status status = call();  // C: throws nothing
    PyEval_RestoreThread(thread);
    if (status != ESPALIER_MLA_OK) throw Refused{status, espalier_mla_last_error()};
}

// PyArg_ParseTupleAndKeywords with `names` ending in null.
template <typename... Targets>
void parse(PyObject* arguments, PyObject* keywords, const char* format, const char* const* names,
           Targets*... targets) {
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, format, const_cast<char**>(names),
                                     targets...))
        throw Raised{};
}

std::int32_t int32_of(const char* name, long long value);
float finite(const char* name, double value);

// --- objects that hold a C++ value -----------------------------------------------------------
// A Python object is made whole or not at all, so `value` is never null where methods see it.
template <typename T>
struct Box {
    PyObject ob_base;  // PyObject_HEAD
    T* value;
};

// make: T().
template <typename T, typename Make>
PyObject* new_box(PyTypeObject* type, Make make) {
    return guarded([&]() -> PyObject* {
        T* const value = new T(make());
        const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
        PyObject* const self = allocate(type, 0);
        if (self == nullptr) {
            delete value;
            throw Raised{};
        }
        reinterpret_cast<Box<T>*>(self)->value = value;
        return self;
    });
}

template <typename T>
void delete_box(PyObject* self) {
    PyTypeObject* const type = Py_TYPE(self);
    delete reinterpret_cast<Box<T>*>(self)->value;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);  // an instance of a heap type holds it
}

template <typename T>
T& value_of(PyObject* self) {
    return *reinterpret_cast<Box<T>*>(self)->value;
}

}  // namespace espalier::python
