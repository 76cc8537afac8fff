// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE: text ↔ token ids, as the published tokenizer defines them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "base/limits.hpp"

namespace espalier {
struct GgufHeader;
}

namespace espalier::text {

enum class SpecialTokens {
    // "<|EOT|>" in the text is plain characters (what a user typed). This holds for every added
    // token, also those
    // that the file does not flag as special: DeepSeek's "<｜User｜>" and "<think>" are among them.
    as_text,
    parsed,  // added tokens are recognised (text made by a chat template)
};

// Bytes [begin, end) of a text.
struct ByteRange {
    std::size_t begin = 0;
    std::size_t end = 0;
    bool operator==(const ByteRange&) const = default;
};

class Tokenizer {
  public:
    // tokenizer.json, or tiktoken.model + tokenizer_config.json, whichever the directory has; or a
    // GGUF file's own.
    static Expected<Tokenizer> load(const std::filesystem::path& model);
    // From the files' contents; config_json_text is tokenizer_config.json's, if there is one.
    // `name` stands before file names in error messages (a directory).
    static Expected<Tokenizer> from_tokenizer_json(std::string_view json_text,
                                                   std::optional<std::string_view> config_json_text,
                                                   std::string_view name);
    static Expected<Tokenizer> from_tiktoken(std::string_view model_text,
                                             std::optional<std::string_view> config_json_text,
                                             std::string_view name);
    // From a GGUF file's metadata, `name` being the file's.
    static Expected<Tokenizer> from_gguf(const GgufHeader& header, std::string_view name);

    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    // Any bytes up to 256 MiB: invalid UTF-8 is replaced by U+FFFD as the reference library does
    // when it reads such text. Adds no bos. Thread-safe.
    Expected<std::vector<TokenId>> encode(std::string_view text,
                                          SpecialTokens special = SpecialTokens::as_text) const;

    // One text of two origins: added tokens are recognised where they do not touch one of the
    // `plain` ranges (ascending, apart from each other), which are what a user typed. Words go
    // across the borders. The text is valid UTF-8. Thread-safe.
    Expected<std::vector<TokenId>> encode_mixed(std::string_view text,
                                                std::span<const ByteRange> plain) const;

    std::string decode(std::span<const TokenId> ids, bool skip_special = true) const;
    // The bytes of one token; empty for ids that stand for nothing.
    std::string_view token_bytes(TokenId id) const;
    std::optional<TokenId> id_of(std::string_view bytes) const;  // also added tokens
    bool is_special(TokenId id) const;
    // An added token: a marker of chats or tools, whether or not its file flags it as special.
    bool is_added(TokenId id) const;
    std::int64_t vocabulary() const;     // largest id + 1
    std::optional<TokenId> bos() const;  // where the tokenizer adds one by default
    std::optional<TokenId> eos() const;  // the eos_token of tokenizer_config.json
    // The chat template of tokenizer_config.json (of several the one named "default") or
    // chat_template.jinja, which wins; untouched, empty if there is none.
    const std::string& chat_template() const;

    struct Model;  // what the loaders fill in (model.hpp)
    explicit Tokenizer(std::unique_ptr<Model> model);

  private:
    std::unique_ptr<Model> model_;
};

// Turns ids into text piece by piece and never splits a code point: bytes of an unfinished one are
// held back until it is complete or certainly wrong (then U+FFFD).
class StreamDecoder {
  public:
    explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true)
        : tokenizer_(&tokenizer), skip_special_(skip_special) {}
    std::string push(TokenId id);
    std::string finish();

  private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    std::string pending_;
};

}  // namespace espalier::text
