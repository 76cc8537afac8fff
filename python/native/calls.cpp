// SPDX-License-Identifier: Apache-2.0
#include "calls.hpp"

#include <unistd.h>

#include <cstring>

namespace espalier::python {

Types types;

namespace {

constexpr std::int64_t kKey = 576;     // columns of an absorbed query
constexpr std::int64_t kLatent = 512;  // of its result
constexpr std::int64_t kQuery = 192;   // columns of a decompressed query
constexpr std::int64_t kValue = 128;   // of its result
constexpr std::int64_t kUpRows = 256;  // rows of a head's up-projection

// The queries of a call over rows, and what it writes.
struct Outputs {
    Outputs(PyObject* queries, PyObject* result, PyObject* logsumexp, std::int64_t tokens,
            std::int64_t query_columns, std::int64_t out_columns, const Device& device)
        : q(queries, "q"), out(result, "out"), lse(optional_array(logsumexp, "lse")) {
        q.expect_contiguous({Type::bf16, Type::f16, Type::f32, Type::e4m3},
                            {tokens, kAnySize, query_columns}, device);
        out.expect_contiguous({Type::bf16, Type::f16, Type::f32}, {tokens, q.size(1), out_columns},
                              device);
        if (lse) lse->expect_contiguous({Type::f32}, {tokens, q.size(1)}, device);
    }
    std::int32_t heads() const { return int32_of("the number of heads", q.size(1)); }
    void touched_by(Footprint& footprint) const {
        footprint.reads(q);
        footprint.writes(out);
        footprint.writes(lse);
    }

    Array q;
    Array out;
    std::optional<Array> lse;
};

Plan* optional_plan(PyObject* object) {
    if (object == Py_None) return nullptr;
    if (!PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(types.plan))) {
        PyErr_SetString(PyExc_TypeError, "plan must be a Plan or None");
        throw Raised{};
    }
    return &value_of<Plan>(object);
}

Plan::Key key_of(const espalier_mla_absorbed_call& call) {
    const espalier_mla_rows& rows = *call.rows;
    return {.rows = rows.rows,
            .max_q_len = rows.max_q_len,
            .max_kv_len = rows.max_kv_len,
            .block_stride = rows.block_stride,
            .table_rows = rows.table_rows,
            .dcp_world = rows.dcp_world,
            .dcp_rank = rows.dcp_rank,
            .first_slot = rows.first_slot,
            .token_end = rows.token_end,
            .total_splits = rows.total_splits,
            .custom_mask_len = rows.custom_mask_len,
            .heads = call.heads,
            .format = call.kv->format,
            .page_tokens = call.kv->page_tokens,
            .multiprocessors = call.multiprocessors,
            .invariant = call.invariant != 0,
            .tail_len = rows.tail_len != nullptr,
            .words = rows.words != nullptr,
            .custom_mask = rows.custom_mask != nullptr,
            .table_row = rows.table_row != nullptr};
}

}  // namespace

// --- contexts --------------------------------------------------------------------------------

Context::Context(espalier_mla_context* handle, const Device& device)
    : handle_(handle), device_(device), owner_(getpid()) {}

Context::Context(Context&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)),
      device_(other.device_),
      owner_(other.owner_) {}

// In a fork the context's threads do not exist, and cannot be joined.
Context::~Context() {
    if (owner_ == getpid()) espalier_mla_destroy(handle_);
}

Context Context::parse(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"device", "threads", "index", nullptr};
    const char* device = nullptr;
    long long threads = 0;
    long long index = 0;
    python::parse(arguments, keywords, "s|$LL:Context", names, &device, &threads, &index);
    const bool cuda = std::strcmp(device, "cuda") == 0;
    if (!cuda && std::strcmp(device, "cpu") != 0)
        refuse(ESPALIER_MLA_UNSUPPORTED, "attention on {}: cpu and cuda are possible", device);
    const std::int32_t count = int32_of("threads", threads);
    const Device where{.cuda = cuda, .index = cuda ? int32_of("index", index) : 0};
    espalier_mla_context* handle = nullptr;
    run_unlocked([&] {
        return cuda ? espalier_mla_create_cuda(&handle) : espalier_mla_create_cpu(count, &handle);
    });
    return Context(handle, where);
}

espalier_mla_context* Context::handle() const {
    if (owner_ != getpid())
        refuse(ESPALIER_MLA_INVALID, "a context of process {} in its fork {}", owner_, getpid());
    return handle_;
}

void Context::check_here(const char* name, const Device& device) const {
    if (device != device_)
        refuse(ESPALIER_MLA_INVALID, "{} on {} in a call on {}", name, name_of(device),
               name_of(device_));
}

PyObject* Context::bytes_for(Size size, const espalier_mla_capacities& most) const {
    std::uint64_t bytes = 0;
    espalier_mla_context* const context = handle();
    run_unlocked([&] { return size(context, &most, &bytes); });
    return PyLong_FromUnsignedLongLong(bytes);
}

PyObject* Context::workspace_bytes(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"rows", "heads", "invariant", "decompressed", nullptr};
    PyObject* rows = nullptr;
    long long heads = 0;
    int invariant = 0;
    int decompressed = 0;
    python::parse(arguments, keywords, "O!L|$pp:workspace_bytes", names, types.rows, &rows, &heads,
                  &invariant, &decompressed);
    espalier_mla_capacities most =
        value_of<Rows>(rows).capacities(int32_of("the number of heads", heads), invariant != 0);
    if (decompressed != 0) {  // no absorbed call comes with them
        most.decompressed = 1;
        most.max_q_len = 0;
    }
    return bytes_for(espalier_mla_workspace_bytes, most);
}

PyObject* Context::plan_bytes(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"rows", "heads", "invariant", nullptr};
    PyObject* rows = nullptr;
    long long heads = 0;
    int invariant = 0;
    python::parse(arguments, keywords, "O!L|$p:plan_bytes", names, types.rows, &rows, &heads,
                  &invariant);
    return bytes_for(
        espalier_mla_plan_bytes,
        value_of<Rows>(rows).capacities(int32_of("the number of heads", heads), invariant != 0));
}

// --- attention over rows -----------------------------------------------------------------------

// Puts the plan into the call, filled by it if it is not filled yet.
void Context::use_plan(Plan& plan, espalier_mla_absorbed_call& call, const Rows& rows,
                       unsigned long long stream) const {
    check_here("the plan", plan.memory.device());
    const Plan::Key key = key_of(call);
    if (plan.filled && *plan.filled != key)
        refuse(ESPALIER_MLA_INVALID,
               "the plan is of a call with other rows, heads, pages or options: reset() it");
    call.plan = plan.memory.data();
    if (plan.filled) return;
    espalier_mla_context* const context = handle();
    const espalier_mla_capacities most = rows.capacities(call.heads, call.invariant != 0);
    std::uint64_t needed = 0;
    run_unlocked([&] { return espalier_mla_plan_bytes(context, &most, &needed); });
    if (static_cast<std::uint64_t>(plan.memory.size(0)) < needed)
        refuse(ESPALIER_MLA_EXHAUSTED, "a plan of {} bytes, this call needs {}",
               plan.memory.size(0), needed);
    run_unlocked([&] { return espalier_mla_plan(context, &call, stream_of(stream)); });
    plan.filled = key;
}

PyObject* Context::absorbed(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"q",
                                        "pages",
                                        "rows",
                                        "out",
                                        "lse",
                                        "workspace",
                                        "plan",
                                        "scale",
                                        "q_scale",
                                        "invariant",
                                        "multiprocessors",
                                        "stream",
                                        nullptr};
    PyObject *q, *pages_object, *rows_object, *out, *lse, *workspace_object, *plan_object = Py_None;
    double scale = kUnsetScale;
    double q_scale = 1.0;
    int invariant = 0;
    long long multiprocessors = 0;
    unsigned long long stream = 0;
    python::parse(arguments, keywords, "OO!O!OOO|$OddpLK:absorbed", names, &q, types.pages,
                  &pages_object, types.rows, &rows_object, &out, &lse, &workspace_object,
                  &plan_object, &scale, &q_scale, &invariant, &multiprocessors, &stream);
    const Pages& pages = value_of<Pages>(pages_object);
    const Rows& rows = value_of<Rows>(rows_object);
    check_here("pages", pages.data.device());
    check_here("rows", rows.device());
    rows.check_reach(pages.c.page_tokens);
    const Outputs outputs(q, out, lse, rows.numbers.token_end, kKey, kLatent, device_);
    const Workspace workspace(workspace_object, device_);
    Plan* const plan = optional_plan(plan_object);

    const espalier_mla_rows c_rows = rows.c();
    espalier_mla_absorbed_call call{};
    call.size = sizeof call;
    call.rows = &c_rows;
    call.kv = &pages.c;
    call.heads = outputs.heads();
    call.q_dtype = dtype_of(outputs.q);
    call.out_dtype = dtype_of(outputs.out);
    call.invariant = invariant;
    call.q = outputs.q.data();
    call.out = outputs.out.data();
    call.lse = data_of<float>(outputs.lse);
    call.scale = softmax_scale(scale);
    call.q_scale = finite("q_scale", q_scale);
    call.multiprocessors = int32_of("multiprocessors", multiprocessors);

    Footprint footprint;
    outputs.touched_by(footprint);
    footprint.reads(pages.data);
    rows.read_by(footprint);
    footprint.writes(workspace.array);
    if (plan != nullptr) footprint.writes(plan->memory);
    footprint.check();

    if (plan != nullptr) use_plan(*plan, call, rows, stream);
    espalier_mla_context* const context = handle();
    run_unlocked([&] {
        return espalier_mla_absorbed(context, &call, workspace.data(), workspace.bytes(),
                                     stream_of(stream));
    });
    return none();
}

PyObject* Context::decompressed(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"q",   "pages",     "rows",  "up",     "out",
                                        "lse", "workspace", "scale", "stream", nullptr};
    PyObject *q, *pages_object, *rows_object, *up_object, *out, *lse, *workspace_object;
    double scale = kUnsetScale;
    unsigned long long stream = 0;
    python::parse(arguments, keywords, "OO!O!OOOO|$dK:decompressed", names, &q, types.pages,
                  &pages_object, types.rows, &rows_object, &up_object, &out, &lse,
                  &workspace_object, &scale, &stream);
    const Pages& pages = value_of<Pages>(pages_object);
    const Rows& rows = value_of<Rows>(rows_object);
    check_here("pages", pages.data.device());
    check_here("rows", rows.device());
    rows.check_reach(pages.c.page_tokens);
    const Outputs outputs(q, out, lse, rows.numbers.token_end, kQuery, kValue, device_);
    const Array up(up_object, "up");
    up.expect_contiguous({Type::bf16}, {outputs.q.size(1), kUpRows, kLatent}, device_);
    const Workspace workspace(workspace_object, device_);

    const espalier_mla_rows c_rows = rows.c();
    espalier_mla_decompressed_call call{};
    call.size = sizeof call;
    call.rows = &c_rows;
    call.kv = &pages.c;
    call.heads = outputs.heads();
    call.q_dtype = dtype_of(outputs.q);
    call.out_dtype = dtype_of(outputs.out);
    call.q = outputs.q.data();
    (device_.cuda ? call.up_rows : call.up_packed) = up.data();
    call.out = outputs.out.data();
    call.lse = data_of<float>(outputs.lse);
    call.scale = softmax_scale(scale);

    Footprint footprint;
    outputs.touched_by(footprint);
    footprint.reads(up);
    footprint.reads(pages.data);
    rows.read_by(footprint);
    footprint.writes(workspace.array);
    footprint.check();
    espalier_mla_context* const context = handle();
    run_unlocked([&] {
        return espalier_mla_decompressed(context, &call, workspace.data(), workspace.bytes(),
                                         stream_of(stream));
    });
    return none();
}

// --- the cache ---------------------------------------------------------------------------------

PyObject* Context::append(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"pages",     "latent", "rope", "slot",
                                        "nonfinite", "stream", nullptr};
    PyObject *pages_object, *latent_object, *rope_object, *slot_object, *flags = nullptr;
    unsigned long long stream = 0;
    python::parse(arguments, keywords, "O!OOO|O$K:append", names, types.pages, &pages_object,
                  &latent_object, &rope_object, &slot_object, &flags, &stream);
    const Pages& pages = value_of<Pages>(pages_object);
    check_here("pages", pages.data.device());
    const Array latent(latent_object, "latent");
    const Array rope(rope_object, "rope");
    const Array slot(slot_object, "slot");
    const std::optional<Array> nonfinite = optional_array(flags, "nonfinite");
    slot.expect_contiguous({Type::i64}, {kAnySize}, device_);
    const std::int64_t tokens = slot.size(0);
    latent.expect({Type::f32}, {tokens, kLatent}, device_);
    rope.expect({Type::f32}, {tokens, kKey - kLatent}, device_);
    if (latent.stride(1) != 1 || rope.stride(1) != 1)
        refuse(ESPALIER_MLA_INVALID,
               "latent's columns lie {} and rope's {} numbers apart: only rows may have gaps",
               latent.stride(1), rope.stride(1));
    if (nonfinite) nonfinite->expect_contiguous({Type::boolean, Type::u8}, {tokens}, device_);

    espalier_mla_append_call call{};
    call.size = sizeof call;
    call.kv = &pages.c;
    call.tokens = tokens;
    call.latent = latent.data<float>();
    call.latent_stride = latent.stride(0);
    call.rope = rope.data<float>();
    call.rope_stride = rope.stride(0);
    call.slot = slot.data<std::int64_t>();
    call.nonfinite = data_of<std::uint8_t>(nonfinite);

    Footprint footprint;
    footprint.writes(pages.data);
    footprint.reads(slot);
    footprint.writes(nonfinite);
    // latent and rope may be columns of one tensor: both are only read.
    footprint.reads(latent);
    footprint.reads(rope);
    footprint.check();
    espalier_mla_context* const context = handle();
    run_unlocked([&] { return espalier_mla_append(context, &call, stream_of(stream)); });
    return none();
}

PyObject* Context::compact(PyObject* arguments, PyObject* keywords) {
    static const char* const names[] = {"pages", "source", "destination", "stream", nullptr};
    PyObject *pages_object, *source_object, *destination_object;
    unsigned long long stream = 0;
    python::parse(arguments, keywords, "O!OO|$K:compact", names, types.pages, &pages_object,
                  &source_object, &destination_object, &stream);
    const Pages& pages = value_of<Pages>(pages_object);
    check_here("pages", pages.data.device());
    const Array source(source_object, "source");
    const Array destination(destination_object, "destination");
    source.expect_contiguous({Type::i64}, {kAnySize}, device_);
    destination.expect_contiguous({Type::i64}, {source.size(0)}, device_);

    espalier_mla_compact_call call{};
    call.size = sizeof call;
    call.kv = &pages.c;
    call.moves = source.size(0);
    call.source = source.data<std::int64_t>();
    call.destination = destination.data<std::int64_t>();

    Footprint footprint;
    footprint.writes(pages.data);
    footprint.reads(source);
    footprint.reads(destination);
    footprint.check();
    espalier_mla_context* const context = handle();
    run_unlocked([&] { return espalier_mla_compact(context, &call, stream_of(stream)); });
    return none();
}

}  // namespace espalier::python
