// SPDX-License-Identifier: Apache-2.0
// The module espalier._native: its types, functions and the exception. What they mean is told in
// _native.pyi; users see the functions of the package that wrap them.
#include "calls.hpp"
#include "espalier/version.hpp"

namespace espalier::python {
namespace {

PyObject* error_type = nullptr;

// --- methods as Python calls them ----------------------------------------------------------------

template <auto kMethod>
PyObject* context_method(PyObject* self, PyObject* arguments, PyObject* keywords) {
    return guarded([&] { return (value_of<Context>(self).*kMethod)(arguments, keywords); });
}

template <auto kFunction>
PyObject* module_function(PyObject*, PyObject* arguments, PyObject* keywords) {
    return guarded([&] { return kFunction(arguments, keywords); });
}

template <typename T>
PyObject* make(PyTypeObject* type, PyObject* arguments, PyObject* keywords) {
    return new_box<T>(type, [&] { return T::parse(arguments, keywords); });
}

// A read-only number or word; kGet: PyObject*(const T&).
template <typename T, auto kGet>
PyObject* property(PyObject* self, void*) {
    return kGet(value_of<T>(self));
}

PyCFunction as_function(PyCFunctionWithKeywords function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

constexpr int kKeywords = METH_VARARGS | METH_KEYWORDS;

PyMethodDef context_methods[] = {
    {"workspace_bytes", as_function(context_method<&Context::workspace_bytes>), kKeywords, nullptr},
    {"plan_bytes", as_function(context_method<&Context::plan_bytes>), kKeywords, nullptr},
    {"absorbed", as_function(context_method<&Context::absorbed>), kKeywords, nullptr},
    {"decompressed", as_function(context_method<&Context::decompressed>), kKeywords, nullptr},
    {"append", as_function(context_method<&Context::append>), kKeywords, nullptr},
    {"compact", as_function(context_method<&Context::compact>), kKeywords, nullptr},
    {"decode_workspace_bytes", as_function(context_method<&Context::decode_workspace_bytes>),
     kKeywords, nullptr},
    {"decode", as_function(context_method<&Context::decode>), kKeywords, nullptr},
    {}};

PyObject* format_word(const Pages& pages) {
    return PyUnicode_FromString(format_name(pages.c.format));
}
PyObject* page_tokens(const Pages& pages) { return PyLong_FromLong(pages.c.page_tokens); }
PyObject* page_count(const Pages& pages) { return PyLong_FromLongLong(pages.c.page_count); }
PyGetSetDef pages_properties[] = {
    {"format", property<Pages, format_word>, nullptr, "the cache format's name", nullptr},
    {"page_tokens", property<Pages, page_tokens>, nullptr, "slots of a page", nullptr},
    {"page_count", property<Pages, page_count>, nullptr, "pages of the pool", nullptr},
    {}};

PyObject* row_count(const Rows& rows) { return PyLong_FromLong(rows.numbers.rows); }
PyObject* token_end(const Rows& rows) { return PyLong_FromLongLong(rows.numbers.token_end); }
PyGetSetDef rows_properties[] = {
    {"rows", property<Rows, row_count>, nullptr, "how many rows", nullptr},
    {"token_end", property<Rows, token_end>, nullptr, "query tokens, padding included", nullptr},
    {}};

PyObject* reset_plan(PyObject* self, PyObject*) {
    value_of<Plan>(self).filled.reset();
    return none();
}
PyMethodDef plan_methods[] = {
    {"reset", reset_plan, METH_NOARGS, "The next call that brings the plan fills it anew."}, {}};

constexpr char kPagesText[] =
    "Pages(data, *, format=None, page_tokens=None, scale=1.0)\n--\n\n"
    "One layer's cache: a tensor [pages, page_tokens, 576] or [pages, page_tokens, 1, 576] of\n"
    "float32, bfloat16, float16 or float8_e4m3fn (times scale), or uint8 [pages, bytes] with\n"
    "format='fp8_token' and page_tokens. Pages may have gaps between them.";
constexpr char kRowsText[] =
    "Rows(q_indptr, kv_len, block_table, mask, *, token_end, max_q_len, max_kv_len,\n"
    "     tail_len=None, words=None, custom_mask=None, custom_mask_offset=None, table_row=None,\n"
    "     global_kv_len=None, dcp_world=1, dcp_rank=0, total_splits=0, first_slot=0)\n\n"
    "The ragged rows of a step, as espalier_mla_rows of mla.h: the tensors are held and read by\n"
    "every call, so they may be written in place from step to step; the integers are capacities.";
constexpr char kPlanText[] =
    "Plan(memory)\n--\n\nMemory (uint8) for a plan, filled by the first call that brings it.";
constexpr char kContextText[] =
    "Context(device, *, threads=0, index=0)\n--\n\n"
    "The attention library on 'cpu', or on 'cuda': the current GPU, which torch numbers index.";
constexpr char kErrorText[] =
    "What the attention library, or this face of it, refuses: a sentence that names the thing.\n"
    "status is 'invalid', 'unsupported', 'unavailable', 'device', 'exhausted' or 'internal'.";

// A type of the module, whose objects hold a T.
template <typename T>
PyObject* make_type(PyObject* module, const char* name, const char* text, PyMethodDef* methods,
                    PyGetSetDef* properties) {
    static PyMethodDef no_methods[] = {{}};
    static PyGetSetDef no_properties[] = {{}};
    PyType_Slot slots[] = {{Py_tp_new, reinterpret_cast<void*>(make<T>)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(delete_box<T>)},
                           {Py_tp_doc, const_cast<char*>(text)},
                           {Py_tp_methods, methods != nullptr ? methods : no_methods},
                           {Py_tp_getset, properties != nullptr ? properties : no_properties},
                           {0, nullptr}};
    const std::string full = std::string("espalier._native.") + name;
    PyType_Spec spec{full.c_str(), sizeof(Box<T>), 0, Py_TPFLAGS_DEFAULT, slots};
    Ref type(PyType_FromSpec(&spec));
    if (PyModule_AddObjectRef(module, name, type.get()) != 0) throw Raised{};
    return type.release();  // kept for good: arguments are compared with it
}

PyMethodDef module_functions[] = {
    {"pack_up_weights", as_function(module_function<pack_up_weights>), kKeywords, nullptr},
    {"page_stride", as_function(module_function<page_stride>), kKeywords,
     "page_stride(format, page_tokens)\n--\n\nBytes of a page: the least from page to page."},
    {"row_splits", as_function(module_function<row_splits>), kKeywords,
     "row_splits(q_len, kv_len)\n--\n\nWhat a row counts towards total_splits of Rows."},
    {}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "espalier._native",
                          "The attention library of mla.h on DLPack tensors.",
                          -1,
                          module_functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

PyObject* make_module() {
    Ref module(PyModule_Create(&definition));
    const Ref members(Py_BuildValue("{s:s}", "status", "invalid"));  // unless set_error() says so
    error_type = Ref(PyErr_NewExceptionWithDoc("espalier.Error", kErrorText, PyExc_RuntimeError,
                                               members.get()))
                     .release();
    if (PyModule_AddObjectRef(module.get(), "Error", error_type) != 0) throw Raised{};
    types.pages = make_type<Pages>(module.get(), "Pages", kPagesText, nullptr, pages_properties);
    types.rows = make_type<Rows>(module.get(), "Rows", kRowsText, nullptr, rows_properties);
    types.plan = make_type<Plan>(module.get(), "Plan", kPlanText, plan_methods, nullptr);
    types.context =
        make_type<Context>(module.get(), "Context", kContextText, context_methods, nullptr);
    const struct {
        const char* name;
        long value;
    } masks[] = {{"FULL", ESPALIER_MLA_FULL},
                 {"CAUSAL", ESPALIER_MLA_CAUSAL},
                 {"TREE", ESPALIER_MLA_TREE},
                 {"DENSE", ESPALIER_MLA_DENSE}};
    for (const auto& mask : masks)
        if (PyModule_AddIntConstant(module.get(), mask.name, mask.value) != 0) throw Raised{};
    if (PyModule_AddStringConstant(module.get(), "__version__", ESPALIER_VERSION) != 0)
        throw Raised{};
    return module.release();
}

}  // namespace

// An instance with the status, as its class's text says.
void set_error(const Refused& refused) noexcept {
    PyObject* const error = PyObject_CallFunction(error_type, "s", refused.sentence.c_str());
    if (error == nullptr) return;
    PyObject* const status = PyUnicode_FromString(espalier_mla_status_name(refused.status));
    if (status != nullptr && PyObject_SetAttrString(error, "status", status) == 0)
        PyErr_SetObject(error_type, error);
    Py_XDECREF(status);
    Py_DECREF(error);
}

}  // namespace espalier::python

PyMODINIT_FUNC PyInit__native() { return espalier::python::guarded(espalier::python::make_module); }
