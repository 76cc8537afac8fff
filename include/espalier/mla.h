// SPDX-License-Identifier: Apache-2.0
// The attention library as plain C99: multi-head latent attention over a paged cache for ragged
// rows, on the CPU or on CUDA (Hopper). docs/mla_contract.md says what is computed and what is
// guaranteed; this header says how to call it. examples/mla_decode.c is a complete program.
//
// Rules for every call
// - All arrays lie in the memory of the context's device: host memory for the CPU, device memory
//   for CUDA. Structs and integers are the host's. CUDA calls only enqueue work on `stream`, never
//   read device memory on the host and never allocate, so they may be captured into a graph and
//   replayed with other data within the same host integers.
// - Every struct begins with its own size: set it to sizeof. A size this library does not know is
//   refused. Set everything you do not use to zero.
// - Every call returns a status; what is not possible is refused by name, nothing is ignored.
//   espalier_mla_last_error() has the sentence.
// - Workspace is the caller's: ask for the bytes, align it to ESPALIER_MLA_WORKSPACE_ALIGNMENT, and
//   leave it alone until the call has finished (CUDA: until the stream has passed it).
// - One context may be used from several threads; on the CPU their calls run one after another.
#ifndef ESPALIER_MLA_H
#define ESPALIER_MLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Grows when a struct, an enumerator or a function changes its meaning; what is added keeps it.
#define ESPALIER_MLA_ABI_VERSION 4
#define ESPALIER_MLA_WORKSPACE_ALIGNMENT 64

// The ABI version of the library that was linked; compare with ESPALIER_MLA_ABI_VERSION.
int32_t espalier_mla_abi_version(void);

typedef enum espalier_mla_status {
    ESPALIER_MLA_OK = 0,
    ESPALIER_MLA_INVALID = 1,      // the call contradicts itself
    ESPALIER_MLA_UNSUPPORTED = 2,  // well formed, but not something this build or device can do
    ESPALIER_MLA_UNAVAILABLE = 3,  // the machine has no such device
    ESPALIER_MLA_DEVICE = 4,       // the system or the CUDA runtime refused
    ESPALIER_MLA_EXHAUSTED = 5,    // workspace or memory is too small
    ESPALIER_MLA_INTERNAL = 6      // a bug of this library
} espalier_mla_status;

// "ok", "invalid", …; "?" for a number that is no status.
const char* espalier_mla_status_name(espalier_mla_status status);
// The sentence of this thread's last call that did not return ESPALIER_MLA_OK; "" before the first.
// Valid until this thread's next call.
const char* espalier_mla_last_error(void);

// Element types, cache formats and masks; fields that hold them are int32_t (masks: uint8_t).
enum { ESPALIER_MLA_F32 = 0, ESPALIER_MLA_F16 = 1, ESPALIER_MLA_BF16 = 2, ESPALIER_MLA_E4M3 = 3 };
enum {
    ESPALIER_MLA_KV_F32 = 0,  // CPU only
    ESPALIER_MLA_KV_BF16 = 1,
    ESPALIER_MLA_KV_FP16 = 2,
    ESPALIER_MLA_KV_FP8_TENSOR = 3,
    ESPALIER_MLA_KV_FP8_TOKEN = 4
};
enum {
    ESPALIER_MLA_FULL = 0,
    ESPALIER_MLA_CAUSAL = 1,
    ESPALIER_MLA_TREE = 2,
    ESPALIER_MLA_DENSE = 3
};

// ---- Contexts --------------------------------------------------------------------------------

typedef struct espalier_mla_context espalier_mla_context;

// The best kernels of this machine (or those that ESPALIER_CPU_VARIANT names) on `threads` threads,
// the caller's included; 0: as many as the machine has.
espalier_mla_status espalier_mla_create_cpu(int32_t threads, espalier_mla_context** context);
// The calling thread's current CUDA device, which must be current in later calls too.
espalier_mla_status espalier_mla_create_cuda(espalier_mla_context** context);
// NULL is fine. CUDA: work under way is not waited for.
void espalier_mla_destroy(espalier_mla_context* context);

// ---- Pages and rows --------------------------------------------------------------------------

// Bytes of a page of 16, 32, 64 or 128 tokens: the least page_stride.
espalier_mla_status espalier_mla_page_stride(int32_t format, int32_t page_tokens, int64_t* bytes);

// One layer's cache. Slot s of the pool lies in page s / page_tokens.
typedef struct espalier_mla_pages {
    uint64_t size;
    void* data;           // CUDA: a multiple of 16
    int32_t format;       // ESPALIER_MLA_KV_…
    int32_t page_tokens;  // 16, 32, 64 or 128
    int64_t page_stride;  // bytes from page to page; 0: pages lie close
    int64_t page_count;
    float scale;  // fp8_tensor: stored number times this
} espalier_mla_pages;

// Ragged rows: row b owns query tokens q_indptr[b] … q_indptr[b+1]-1 and kv_len[b] cached slots,
// its own tokens included. Tokens from q_indptr[rows] to token_end are padding and give out 0, lse
// -inf.
typedef struct espalier_mla_rows {
    uint64_t size;
    int32_t rows;
    int32_t max_q_len;     // no row has more tokens
    int32_t max_kv_len;    // no row has more slots
    int32_t dcp_world;     // context-parallel ranks; 0 and 1: none
    int32_t dcp_rank;      // local slot c is global slot c·world + rank
    int32_t block_stride;  // entries per row of block_table
    int64_t token_end;
    const int32_t* q_indptr;     // [rows + 1]
    const int32_t* kv_len;       // [rows]
    const int32_t* block_table;  // [rows, block_stride] page ids; with table_row, [table_rows, …]
    const uint8_t* mask;         // [rows] ESPALIER_MLA_FULL …
    const int32_t* tail_len;     // [rows] tree rows: q_len … 64; NULL: q_len
    const uint64_t* words;       // [token_end] tree rows: bit j = tail slot j is visible
    const uint8_t* custom_mask;  // dense rows: [q_len × kv_len] at custom_mask_offset[b]
    const int64_t* custom_mask_offset;  // [rows]
    int64_t custom_mask_len;            // bytes; what lies outside is hidden and never read
    const int32_t* global_kv_len;       // [rows] with dcp_world > 1
    const int32_t* table_row;  // [rows]: row b's block table is the table_row[b]-th; NULL: the b-th
    int64_t total_splits;  // the sum of espalier_mla_row_splits over all rows at most; 0: rows of
                           // max_q_len tokens over max_kv_len slots, all of them
    int32_t table_rows;    // block tables, with table_row
    int32_t first_slot;    // 0 or 1: (global) slots below it do not exist, keys count from it
} espalier_mla_rows;

// A row's share of total_splits, whatever its mask. Invariant attention on CUDA takes
// 1,088 bytes of workspace per split and head (heads in sixteens), and not more than 256 MB, plan
// included, for rows of up to 900,000 slots: calls with more splits are several launches. A call
// whose rows have more splits than it said is refused on the CPU, while CUDA, which cannot look,
// may leave out the first row that does not fit and those behind it: their output stays as it was.
int64_t espalier_mla_row_splits(int32_t q_len, int32_t kv_len);

// The host integers that bound a call's workspace.
typedef struct espalier_mla_capacities {
    uint64_t size;
    int32_t heads;
    int32_t rows;
    int64_t tokens;  // token_end
    int32_t max_q_len;
    int32_t max_kv_len;
    int32_t invariant;     // not 0: absorbed calls may set it too
    int32_t dense;         // not 0: calls may bring a custom_mask
    int64_t total_splits;  // as in espalier_mla_rows; 0: derived
    int32_t decompressed;  // not 0: there may be decompressed calls too
    int32_t reserved;      // 0
} espalier_mla_capacities;

// Bytes that any call within these capacities may take. Decompressed calls on CUDA hold keys and
// values of some heads there: 350 MB, or 5 KB for each slot of a row beyond 65,536. For them alone
// max_q_len may be 0.
espalier_mla_status espalier_mla_workspace_bytes(const espalier_mla_context* context,
                                                 const espalier_mla_capacities* most,
                                                 uint64_t* bytes);

// ---- Entry 1: absorbed attention (decode, verification, drafts) --------------------------------

typedef struct espalier_mla_absorbed_call {
    uint64_t size;
    const espalier_mla_rows* rows;
    const espalier_mla_pages* kv;
    int32_t heads;      // 1 to 128
    int32_t q_dtype;    // ESPALIER_MLA_BF16 …; docs/mla_contract.md has the legal pairs
    int32_t out_dtype;  // f32, f16 or bf16
    int32_t invariant;  // not 0: a token's bits depend on its query and visible keys alone, on CUDA
                        // at the price of time and workspace (the CPU always keeps this)
    const void* q;      // [token_end, heads, 576]
    void* out;          // [token_end, heads, 512]
    float* lse;         // [token_end, heads] natural log, or NULL
    float scale;        // of the softmax
    float q_scale;      // e4m3 queries
    void* plan;         // CUDA: what espalier_mla_plan filled, or NULL: the call makes its own. The
                        // CPU needs none
    int32_t multiprocessors;  // CUDA: how many the call may take; 0: all. No bits of an invariant
                              // call depend on it
} espalier_mla_absorbed_call;

espalier_mla_status espalier_mla_absorbed(espalier_mla_context* context,
                                          const espalier_mla_absorbed_call* call, void* workspace,
                                          uint64_t workspace_bytes, void* stream);

// The division of work depends on the rows' lengths and masks alone, so the layers of a step share
// one plan instead of each making its own. Put plan_bytes of the device's memory, aligned like a
// workspace, into call->plan of every layer, and let espalier_mla_plan fill it from any of these
// calls once the step's arrays hold what they will. Calls with this plan must agree in rows and the
// arrays' contents, heads, cache format, invariant and multiprocessors, and follow one another in
// stream order: they may not overlap. In a graph, capture it before the first layer. The CPU needs
// no plan: 0 bytes, and nothing is done.
espalier_mla_status espalier_mla_plan_bytes(const espalier_mla_context* context,
                                            const espalier_mla_capacities* most, uint64_t* bytes);
espalier_mla_status espalier_mla_plan(espalier_mla_context* context,
                                      const espalier_mla_absorbed_call* call, void* stream);

// ---- Entry 2: decompressed attention (prompt segments, causal rows) ----------------------------

// The CPU reads the up-projection in a packed layout of the same size: rows and packed hold
// heads · 256 · 512 bf16 numbers in host memory, rows as [heads][128 key rows, 128 value
// rows][512].
espalier_mla_status espalier_mla_pack_up_weights(const void* up_rows, int32_t heads, void* packed);

typedef struct espalier_mla_decompressed_call {
    uint64_t size;
    const espalier_mla_rows* rows;
    const espalier_mla_pages* kv;
    int32_t heads;
    int32_t q_dtype;
    int32_t out_dtype;
    int32_t reserved;       // 0
    const void* q;          // [token_end, heads, 192]: 128 nope, 64 rope columns
    const void* up_rows;    // CUDA: bf16 [heads][128 key rows, 128 value rows][512]
    const void* up_packed;  // CPU: what espalier_mla_pack_up_weights made of them
    void* out;              // [token_end, heads, 128]
    float* lse;             // [token_end, heads] or NULL
    float scale;
} espalier_mla_decompressed_call;

espalier_mla_status espalier_mla_decompressed(espalier_mla_context* context,
                                              const espalier_mla_decompressed_call* call,
                                              void* workspace, uint64_t workspace_bytes,
                                              void* stream);

// ---- Entries 3 and 4: append and compact -------------------------------------------------------

typedef struct espalier_mla_append_call {
    uint64_t size;
    const espalier_mla_pages* kv;
    int64_t tokens;
    const float* latent;  // [tokens, 512], rows latent_stride floats apart
    int64_t latent_stride;
    const float* rope;  // [tokens, 64], rows rope_stride floats apart
    int64_t rope_stride;
    const int64_t* slot;  // [tokens] slot of the pool; below 0: skipped
    uint8_t* nonfinite;   // [tokens] becomes 1 where a number was stored as 0 instead and stays as
                          // it is elsewhere: clear it once for all layers of a step. Or NULL
} espalier_mla_append_call;

espalier_mla_status espalier_mla_append(espalier_mla_context* context,
                                        const espalier_mla_append_call* call, void* stream);

// For i ascending: slot destination[i] becomes slot source[i].
typedef struct espalier_mla_compact_call {
    uint64_t size;
    const espalier_mla_pages* kv;
    int64_t moves;
    const int64_t* source;       // [moves]
    const int64_t* destination;  // [moves]
} espalier_mla_compact_call;

espalier_mla_status espalier_mla_compact(espalier_mla_context* context,
                                         const espalier_mla_compact_call* call, void* stream);

// ---- The decode call of other engines ----------------------------------------------------------

// Every sequence has q_len new tokens, its last slots. Visible: c < seq_len - (q_len-1) + i where
// causal is set, AND byte cmask_off[b] + i·seq_len + c of custom_mask where one is given; without
// either, all slots below seq_len. Bytes outside the mask are hidden and never read.
typedef struct espalier_mla_compat_call {
    uint64_t size;
    const void* q;                // [batch, q_len, heads, 576]
    const void* kv_cache;         // [num_pages, page_size, 576]
    const int32_t* block_tables;  // [batch, max_pages]
    const int32_t* seq_lens;      // [batch] the new tokens included
    const uint8_t* custom_mask;   // or NULL
    const int64_t* cmask_off;     // [batch] with custom_mask
    int64_t custom_mask_len;
    void* out;   // [batch, q_len, heads, 512]
    float* lse;  // [batch, q_len, heads] natural log, or NULL
    int64_t num_pages;
    int32_t batch;
    int32_t q_len;
    int32_t heads;
    int32_t page_size;  // 16, 32, 64 or 128
    int32_t max_pages;
    int32_t max_seq_len;  // no sequence is longer: bounds the workspace. CUDA, which cannot look,
                          // gives a longer one 0 and -inf
    int32_t q_dtype;
    int32_t kv_format;  // any but fp8_token, whose pages are not [page_size, 576]
    int32_t out_dtype;
    int32_t causal;     // 0 or 1
    int32_t invariant;  // as in espalier_mla_absorbed_call
    float softmax_scale;
    float q_scale;   // e4m3 queries
    float kv_scale;  // fp8_tensor
} espalier_mla_compat_call;

// Reads the integers of the call only.
espalier_mla_status espalier_mla_decode_compat_workspace_bytes(const espalier_mla_context* context,
                                                               const espalier_mla_compat_call* call,
                                                               uint64_t* bytes);
espalier_mla_status espalier_mla_decode_compat(espalier_mla_context* context,
                                               const espalier_mla_compat_call* call,
                                               void* workspace, uint64_t workspace_bytes,
                                               void* stream);

#ifdef __cplusplus
}
#endif

#endif  // ESPALIER_MLA_H
