// SPDX-License-Identifier: Apache-2.0
// A random tokenizer of 400 tokens, with or without the markers that formats.hpp knows.
#pragma once

#include <string>
#include <utility>

#include "checkpoint/synthetic.hpp"
#include "support/marked_tokenizer.hpp"
#include "text/tokenizer.hpp"

namespace espalier::output {

inline text::Tokenizer tokenizer(bool has_markers) {
    const std::string plain = *checkpoint::synthetic_tokenizer_json(400);
    return std::move(
        text::Tokenizer::from_tokenizer_json(
            has_markers ? test::marked_tokenizer_json(plain, test::all_markers()) : plain,
            checkpoint::synthetic_tokenizer_config_json(), "test")
            .value());
}

}  // namespace espalier::output
