// SPDX-License-Identifier: Apache-2.0
// One decode step over a draft tree, in C: fill a paged cache, attend with a tree mask, and check
// the result against plain loops. Returns 0 when they agree.
#include <espalier/mla.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    kHeads = 2,
    kKey = 576,
    kLatent = 512,
    kPageTokens = 16,
    kPages = 3,
    kSlots = 37,  // cached, the tree's four tokens included
    kTokens = 4,
    kFirst = kSlots - kTokens  // the tree's first slot
};
static const float kScale = 0.0417f;  // 1 / sqrt(576)

// The tree: token 0 is the root, 1 and 2 its children, 3 a child of 2. A token sees all history,
// its ancestors and itself: bit j stands for the tree's token j.
static const uint64_t kWords[kTokens] = {1u, 1u | 2u, 1u | 4u, 1u | 4u | 8u};

static float latent[kSlots * kLatent], rope[kSlots * 64];
static float query[kTokens * kHeads * kKey], out[kTokens * kHeads * kLatent];
static float lse[kTokens * kHeads];

static float noise(void) {
    static uint32_t state = 1;
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static int check(espalier_mla_status status, const char* what) {
    if (status == ESPALIER_MLA_OK) return 1;
    fprintf(stderr, "%s: %s: %s\n", what, espalier_mla_status_name(status),
            espalier_mla_last_error());
    return 0;
}

static int visible(int token, int slot) {
    return slot < kFirst || ((kWords[token] >> (slot - kFirst)) & 1u) != 0;
}

static double score(int packed, int slot) {
    const float* q = query + packed * kKey;
    double dot = 0.0;
    for (int d = 0; d < kLatent; ++d) dot += (double)q[d] * (double)latent[slot * kLatent + d];
    for (int d = 0; d < 64; ++d) dot += (double)q[kLatent + d] * (double)rope[slot * 64 + d];
    return (double)kScale * dot;
}

// The largest difference between the library's numbers of one (token, head) and plain loops.
static double difference(int token, int head) {
    const int packed = token * kHeads + head;
    double sum = 0.0, worst, value[kLatent];
    memset(value, 0, sizeof value);
    for (int slot = 0; slot < kSlots; ++slot) {
        if (!visible(token, slot)) continue;
        const double p = exp(score(packed, slot));
        sum += p;
        for (int d = 0; d < kLatent; ++d) value[d] += p * (double)latent[slot * kLatent + d];
    }
    worst = fabs((double)lse[packed] - log(sum));
    for (int d = 0; d < kLatent; ++d)
        worst = fmax(worst, fabs((double)out[packed * kLatent + d] - value[d] / sum));
    return worst;
}

int main(void) {
    espalier_mla_context* context = NULL;
    int64_t page_stride = 0;
    uint64_t bytes = 0;
    if (espalier_mla_abi_version() != ESPALIER_MLA_ABI_VERSION) return 1;
    if (!check(espalier_mla_create_cpu(1, &context), "create")) return 1;
    if (!check(espalier_mla_page_stride(ESPALIER_MLA_KV_F32, kPageTokens, &page_stride), "stride"))
        return 1;

    // The cache: pages 2, 0, 1 hold the sequence's slots 0 to 36.
    static const int32_t block_table[kPages] = {2, 0, 1};
    espalier_mla_pages pages = {sizeof pages};
    pages.data = calloc(kPages, (size_t)page_stride);
    pages.format = ESPALIER_MLA_KV_F32;
    pages.page_tokens = kPageTokens;
    pages.page_count = kPages;
    for (int i = 0; i < kSlots * kLatent; ++i) latent[i] = noise();
    for (int i = 0; i < kSlots * 64; ++i) rope[i] = noise();
    for (int i = 0; i < kTokens * kHeads * kKey; ++i) query[i] = noise();

    int64_t slot[kSlots];
    for (int s = 0; s < kSlots; ++s)
        slot[s] = (int64_t)block_table[s / kPageTokens] * kPageTokens + s % kPageTokens;
    espalier_mla_append_call append = {sizeof append};
    append.kv = &pages;
    append.tokens = kSlots;
    append.latent = latent;
    append.latent_stride = kLatent;
    append.rope = rope;
    append.rope_stride = 64;
    append.slot = slot;
    if (!check(espalier_mla_append(context, &append, NULL), "append")) return 1;

    // One row: four tokens with a tree mask over their own four slots.
    static const int32_t q_indptr[] = {0, kTokens}, kv_len[] = {kSlots};
    static const uint8_t mask[] = {ESPALIER_MLA_TREE};
    espalier_mla_rows rows = {sizeof rows};
    rows.rows = 1;
    rows.token_end = kTokens;
    rows.max_q_len = kTokens;
    rows.max_kv_len = kSlots;
    rows.q_indptr = q_indptr;
    rows.kv_len = kv_len;
    rows.block_table = block_table;
    rows.block_stride = kPages;
    rows.mask = mask;
    rows.words = kWords;

    espalier_mla_capacities most = {sizeof most};
    most.heads = kHeads;
    most.rows = 1;
    most.tokens = kTokens;
    most.max_q_len = kTokens;
    most.max_kv_len = kSlots;
    if (!check(espalier_mla_workspace_bytes(context, &most, &bytes), "workspace")) return 1;
    void* memory = malloc((size_t)bytes + ESPALIER_MLA_WORKSPACE_ALIGNMENT);
    const uintptr_t past = (uintptr_t)memory % ESPALIER_MLA_WORKSPACE_ALIGNMENT;
    void* workspace = (char*)memory + (ESPALIER_MLA_WORKSPACE_ALIGNMENT - past);

    espalier_mla_absorbed_call call = {sizeof call};
    call.rows = &rows;
    call.kv = &pages;
    call.heads = kHeads;
    call.q_dtype = ESPALIER_MLA_F32;
    call.out_dtype = ESPALIER_MLA_F32;
    call.q = query;
    call.out = out;
    call.lse = lse;
    call.scale = kScale;
    if (!check(espalier_mla_absorbed(context, &call, workspace, bytes, NULL), "absorbed")) return 1;

    double worst = 0.0;
    for (int token = 0; token < kTokens; ++token)
        for (int head = 0; head < kHeads; ++head) {
            const int packed = token * kHeads + head;
            worst = fmax(worst, difference(token, head));
            printf("token %d head %d: lse %.5f, out %.5f %.5f …\n", token, head,
                   (double)lse[packed], (double)out[packed * kLatent],
                   (double)out[packed * kLatent + 1]);
        }
    printf("largest difference to plain loops: %.1e\n", worst);
    free(memory);
    free(pages.data);
    espalier_mla_destroy(context);
    return worst < 1e-5 ? 0 : 1;  // f32 sums of 576 products below 1: 24 · 2^-24 each way
}
