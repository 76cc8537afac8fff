// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace espalier::text {

std::string StreamDecoder::push(TokenId id) {
    if (skip_special_ && tokenizer_->is_special(id)) return {};
    const std::string_view bytes = tokenizer_->token_bytes(id);
    // Most tokens are whole characters: these need not pass through pending_.
    if (pending_.empty() && valid_utf8_prefix(bytes) == bytes.size()) return std::string(bytes);
    pending_ += bytes;
    std::string ready;
    const std::size_t unfinished = append_valid_utf8(pending_, /*keep_unfinished=*/true, ready);
    pending_.erase(0, pending_.size() - unfinished);
    return ready;
}

std::string StreamDecoder::finish() {
    std::string rest;
    append_valid_utf8(pending_, /*keep_unfinished=*/false, rest);
    pending_.clear();
    return rest;
}

}  // namespace espalier::text
