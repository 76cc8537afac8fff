// SPDX-License-Identifier: Apache-2.0
// The decode call of other engines on tensors, and the functions of mla.h that need no context.
#include <cmath>

#include "calls.hpp"

namespace espalier::python {
namespace {

// The tensors of a decode call; the C struct points into them.
struct Decode {
    static Decode parse(PyObject* arguments, PyObject* keywords);
    void check(const Device& device);

    const Pages* pages;
    Array q;
    Array block_table;
    Array seq_lens;
    std::optional<Array> out;
    std::optional<Array> lse;
    std::optional<Array> custom_mask;
    std::optional<Array> custom_mask_offset;
    Workspace workspace;
    unsigned long long stream;
    espalier_mla_compat_call c;
};

Decode Decode::parse(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"q",           "pages",       "block_table",
                                        "seq_lens",    "out",         "lse",
                                        "workspace",   "custom_mask", "custom_mask_offset",
                                        "max_seq_len", "causal",      "invariant",
                                        "scale",       "q_scale",     "stream",
                                        nullptr};
    PyObject *q, *pages_object, *block_table, *seq_lens;
    PyObject *out = Py_None, *lse = Py_None, *workspace = Py_None, *mask = Py_None,
             *offset = Py_None;
    long long max_seq_len = 0;
    int causal = 0;
    int invariant = 0;
    double scale = kUnsetScale;
    double q_scale = 1.0;
    unsigned long long stream = 0;
    python::parse(arguments, keywords, "OO!OO|OOO$OOLppddK:decode", names, &q, types.pages,
                  &pages_object, &block_table, &seq_lens, &out, &lse, &workspace, &mask, &offset,
                  &max_seq_len, &causal, &invariant, &scale, &q_scale, &stream);
    const Pages& pages = value_of<Pages>(pages_object);
    espalier_mla_compat_call c{};
    c.size = sizeof c;
    c.max_seq_len = int32_of("max_seq_len", max_seq_len);
    c.causal = causal;
    c.invariant = invariant;
    c.softmax_scale = softmax_scale(scale);
    c.q_scale = finite("q_scale", q_scale);
    return {.pages = &pages,
            .q = Array(q, "q"),
            .block_table = Array(block_table, "block_table"),
            .seq_lens = Array(seq_lens, "seq_lens"),
            .out = optional_array(out, "out"),
            .lse = optional_array(lse, "lse"),
            .custom_mask = optional_array(mask, "custom_mask"),
            .custom_mask_offset = optional_array(offset, "custom_mask_offset"),
            .workspace = Workspace(workspace, pages.data.device()),
            .stream = stream,
            .c = c};
}

// Holds the tensors to each other, and fills what the struct takes from them.
void Decode::check(const Device& device) {
    q.expect_contiguous({Type::bf16, Type::f16, Type::f32, Type::e4m3},
                        {kAnySize, kAnySize, kAnySize, 576}, device);
    const std::int64_t batch = q.size(0);
    seq_lens.expect_contiguous({Type::i32}, {batch}, device);
    block_table.expect({Type::i32}, {batch, kAnySize}, device);
    check_table_reach(block_table, c.max_seq_len, pages->c.page_tokens);
    if (custom_mask) custom_mask->expect_contiguous({Type::boolean, Type::u8}, {kAnySize}, device);
    if (custom_mask_offset) custom_mask_offset->expect_contiguous({Type::i64}, {batch}, device);
    std::int64_t tight = 0;
    const auto status = espalier_mla_page_stride(pages->c.format, pages->c.page_tokens, &tight);
    if (status != ESPALIER_MLA_OK) throw Refused{status, espalier_mla_last_error()};
    if (pages->c.page_stride != tight)
        refuse(ESPALIER_MLA_UNSUPPORTED,
               "decode over pages of {} bytes that lie {} apart: they must lie close", tight,
               pages->c.page_stride);
    c.batch = int32_of("the batch", batch);
    c.q_len = int32_of("q_len", q.size(1));
    c.heads = int32_of("the number of heads", q.size(2));
    c.q = q.data();
    c.q_dtype = dtype_of(q);
    c.kv_cache = pages->c.data;
    c.kv_format = pages->c.format;
    c.kv_scale = pages->c.scale;
    c.num_pages = pages->c.page_count;
    c.page_size = pages->c.page_tokens;
    c.block_tables = block_table.data<std::int32_t>();
    c.max_pages = block_stride_of(block_table);
    c.seq_lens = seq_lens.data<std::int32_t>();
    c.custom_mask = data_of<std::uint8_t>(custom_mask);
    c.cmask_off = data_of<std::int64_t>(custom_mask_offset);
    c.custom_mask_len = custom_mask ? custom_mask->size(0) : 0;
    if (out) {
        out->expect_contiguous({Type::bf16, Type::f16, Type::f32},
                               {batch, q.size(1), q.size(2), 512}, device);
        c.out = out->data();
        c.out_dtype = dtype_of(*out);
    }
    if (lse) {
        lse->expect_contiguous({Type::f32}, {batch, q.size(1), q.size(2)}, device);
        c.lse = lse->data<float>();
    }
}

}  // namespace

float softmax_scale(double value) {
    if (std::isnan(value)) {
        PyErr_SetString(PyExc_TypeError, "scale, of the softmax, must be given as a number");
        throw Raised{};
    }
    return finite("scale", value);
}

std::int32_t dtype_of(const Array& array) {
    switch (array.type()) {
        case Type::f32:
            return ESPALIER_MLA_F32;
        case Type::f16:
            return ESPALIER_MLA_F16;
        case Type::bf16:
            return ESPALIER_MLA_BF16;
        default:
            return ESPALIER_MLA_E4M3;
    }
}

Workspace::Workspace(PyObject* tensor, const Device& device)
    : array(optional_array(tensor, "workspace")) {
    if (array) array->expect_contiguous({Type::u8}, {kAnySize}, device);
}

PyObject* Context::decode_workspace_bytes(PyObject* arguments, PyObject* keywords) {
    Decode call = Decode::parse(arguments, keywords);
    check_here("pages", call.pages->data.device());
    call.check(device_);
    std::uint64_t bytes = 0;
    espalier_mla_context* const context = handle();
    run_unlocked(
        [&] { return espalier_mla_decode_compat_workspace_bytes(context, &call.c, &bytes); });
    return PyLong_FromUnsignedLongLong(bytes);
}

PyObject* Context::decode(PyObject* arguments, PyObject* keywords) {
    Decode call = Decode::parse(arguments, keywords);
    check_here("pages", call.pages->data.device());
    call.check(device_);
    Footprint footprint;
    footprint.reads(call.pages->data);
    for (const Array* array : {&call.q, &call.block_table, &call.seq_lens}) footprint.reads(*array);
    footprint.reads(call.custom_mask);
    footprint.reads(call.custom_mask_offset);
    for (const std::optional<Array>* array : {&call.out, &call.lse, &call.workspace.array})
        footprint.writes(*array);
    footprint.check();
    espalier_mla_context* const context = handle();
    run_unlocked([&] {
        return espalier_mla_decode_compat(context, &call.c, call.workspace.data(),
                                          call.workspace.bytes(), stream_of(call.stream));
    });
    return none();
}

// --- without a context --------------------------------------------------------------------------

PyObject* pack_up_weights(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"rows", "packed", nullptr};
    PyObject *rows_object, *packed_object;
    parse(arguments, keywords, "OO:pack_up_weights", names, &rows_object, &packed_object);
    const Array rows(rows_object, "rows");
    const Array packed(packed_object, "packed");
    rows.expect_contiguous({Type::bf16}, {kAnySize, 256, 512}, Device{});
    packed.expect_contiguous({Type::bf16}, {rows.size(0), 256, 512}, Device{});
    Footprint footprint;
    footprint.reads(rows);
    footprint.writes(packed);
    footprint.check();
    const std::int32_t heads = int32_of("the number of heads", rows.size(0));
    run_unlocked([&] { return espalier_mla_pack_up_weights(rows.data(), heads, packed.data()); });
    return none();
}

PyObject* page_stride(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"format", "page_tokens", nullptr};
    const char* format = nullptr;
    long long page_tokens = 0;
    parse(arguments, keywords, "sL:page_stride", names, &format, &page_tokens);
    const std::int32_t known = format_named(format);
    const std::int32_t tokens = int32_of("page_tokens", page_tokens);
    std::int64_t bytes = 0;
    run_unlocked([&] { return espalier_mla_page_stride(known, tokens, &bytes); });
    return PyLong_FromLongLong(bytes);
}

PyObject* row_splits(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"q_len", "kv_len", nullptr};
    long long q_len = 0;
    long long kv_len = 0;
    parse(arguments, keywords, "LL:row_splits", names, &q_len, &kv_len);
    return PyLong_FromLongLong(
        espalier_mla_row_splits(int32_of("q_len", q_len), int32_of("kv_len", kv_len)));
}

}  // namespace espalier::python
