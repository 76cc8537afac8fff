// SPDX-License-Identifier: Apache-2.0
// An identity with every field set, and the ones that differ from it in one field each, by its list
// of fields.
#pragma once

#include <string>
#include <vector>

#include "base/text_identity.hpp"

namespace espalier::test {

inline TextIdentity sample_identity() {
    return {.tokenizer = "89abcdef01234567",
            .model = "0123456789abcdef",
            .weights = "int8",
            .activations = "own",
            .head = "own",
            .kv_format = "fp8_token",
            .prefill_segment = 64,
            .backend = "cpu",
            .family = "cpu",
            .variant = "avx2",
            .products_version = 2,
            .sampling_version = 1};
}

class FieldChanger {
  public:
    explicit FieldChanger(std::size_t which) : which_(which) {}
    void text(std::string_view, std::string& value) {
        if (visited_++ == which_) value += "x";
    }
    template <typename T>
    void integer(std::string_view, T& value, std::int64_t, std::int64_t) {
        if (visited_++ == which_) ++value;
    }

  private:
    std::size_t which_, visited_ = 0;
};

// In the order of the fields.
inline std::vector<TextIdentity> each_field_changed(const TextIdentity& identity) {
    std::vector<TextIdentity> changed(listed(identity).size(), identity);
    for (std::size_t i = 0; i < changed.size(); ++i) {
        FieldChanger changer(i);
        TextIdentity::fields(changer, changed[i]);
    }
    return changed;
}

}  // namespace espalier::test
