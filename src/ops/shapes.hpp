// SPDX-License-Identifier: Apache-2.0
// What every backend asks of its arguments. A failure is a bug of the caller: files and requests
// were checked before.
#pragma once

#include "base/check.hpp"
#include "base/matrix.hpp"
#include "ops/operations.hpp"

namespace espalier::ops {

inline void check_f32(const Matrix& matrix, const char* name) {
    CHECK(matrix.dtype == DType::f32, "{} holds {}, expected f32", name, name_of(matrix.dtype));
}

inline void check_activation(const Matrix& matrix, const char* name) {
    CHECK(matrix.dtype != DType::e4m3, "{} holds e4m3, expected f32, f16 or bf16", name);
}

inline void check_size(std::int64_t got, std::int64_t wanted, const char* name) {
    CHECK(got == wanted, "{}: {} where {} are needed", name, got, wanted);
}
inline void check_copied_rows(const Matrix& x, const Matrix& out) {
    CHECK(x.dtype == out.dtype, "rows of {} copied to {}", name_of(x.dtype), name_of(out.dtype));
    check_size(out.cols, x.cols, "copied columns");
}
// For backends whose pairs lie in host memory.
inline void check_pair(const Matrix& x, const RowPairs& pairs, std::int64_t i, const Matrix& out) {
    CHECK(pairs.from[i] < x.rows, "row {} of {}", pairs.from[i], x.rows);
    CHECK(pairs.to[i] >= 0 && pairs.to[i] < out.rows, "to row {} of {}", pairs.to[i], out.rows);
}

// Columns [h·step, +width) for every head must lie inside the rows.
inline void check_heads(const Matrix& matrix, std::int64_t step, std::int32_t heads,
                        std::int64_t width, const char* name) {
    CHECK(heads == 0 || (heads - 1) * step + width <= matrix.cols,
          "{}: {} heads of {} every {} in {} columns", name, heads, width, step, matrix.cols);
}

inline void check_rule(const RouterRule& rule, const Matrix& logits) {
    check_f32(logits, "router logits");
    check_size(logits.cols, rule.experts, "router logits");
    CHECK(rule.experts >= 1 && rule.experts <= kMaxExperts, "{} experts, at most {}", rule.experts,
          kMaxExperts);
    CHECK(rule.top_k >= 1 && rule.top_k <= kMaxTopK, "top {} experts, at most {}", rule.top_k,
          kMaxTopK);
    const std::int32_t groups = rule.group_score == GroupScore::none ? 1 : rule.groups;
    const std::int32_t kept = rule.group_score == GroupScore::none ? 1 : rule.top_groups;
    CHECK(groups >= 1 && rule.experts % groups == 0, "{} experts in {} groups", rule.experts,
          groups);
    CHECK(kept >= 1 && kept <= groups, "{} of {} groups kept", kept, groups);
    CHECK(rule.top_k <= rule.experts / groups * kept, "top {} of the {} experts that groups leave",
          rule.top_k, rule.experts / groups * kept);
}

// Everything but the plan's data, which lie in device memory.
inline void check_terms(const Terms& terms, const Matrix& residual) {
    const auto& [experts, segments] = terms;
    check_f32(residual, "residual");
    CHECK(experts.rows.data != nullptr || segments.count > 0 || residual.rows == 0,
          "{} rows have nothing added", residual.rows);
    if (experts.rows.data != nullptr) {
        check_f32(experts.rows, "expert outputs");
        check_size(experts.rows.cols, residual.cols, "columns of expert outputs");
    }
    if (segments.count == 0) return;
    check_f32(segments.sums, "segment sums");
    check_size(segments.sums.rows, segments.count * residual.rows, "rows of segment sums");
    check_size(segments.sums.cols, residual.cols, "columns of segment sums");
}

inline void check_sampling(const Matrix& logits, const SamplingBatch& batch) {
    check_f32(logits, "logits");
    check_size(logits.rows, batch.nodes, "nodes");
    CHECK(batch.vocabulary >= 1 && batch.vocabulary <= kMaxVocabulary,
          "a vocabulary of {}, at most {}", batch.vocabulary, kMaxVocabulary);
}

inline void check_draft(const Matrix& logits, const SamplingBatch& batch,
                        const DraftVocabulary& vocabulary, const DraftRule& rule) {
    check_sampling(logits, batch);
    CHECK((vocabulary.target_of == nullptr) == (vocabulary.draft_of == nullptr),
          "a draft's vocabulary has one map without the other");
    CHECK(logits.cols >= 1 && logits.cols <= batch.vocabulary &&
              (vocabulary.target_of != nullptr || logits.cols == batch.vocabulary),
          "{} draft logits for a vocabulary of {}", logits.cols, batch.vocabulary);
    CHECK(rule.width >= 1 && rule.width <= kMaxDrafts, "{} children, at most {}", rule.width,
          kMaxDrafts);
}

inline void check_growth(const FoundChildren& found) {
    CHECK(found.width >= 1 && found.width <= kMaxDrafts, "{} children, at most {}", found.width,
          kMaxDrafts);
    CHECK(found.plain != nullptr || found.coupled != nullptr, "trees grow without children");
}

inline void check_frontiers(const FrontierBatch& batch, const FrontierDraws& draws) {
    check_size(draws.batch.nodes, batch.capacity, "draws of frontiers");
    CHECK(batch.page_tokens >= 1, "pages of {} tokens", batch.page_tokens);
}

}  // namespace espalier::ops
