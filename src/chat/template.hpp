// SPDX-License-Identifier: Apache-2.0
// Chat templates: the part of Jinja that published templates use, rendered as transformers does
// with jinja2 (trim_blocks, lstrip_blocks, break and continue, its tojson, raise_exception,
// strftime_now), within limits. What is not supported is an error that names construct and line.
// docs/chat_templates.md has the list.
#pragma once

#include <ctime>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "chat/limits.hpp"
#include "text/tokenizer.hpp"

namespace espalier::chat {

using Range = text::ByteRange;

struct Rendered {
    std::string text;
    // The bytes of `text` that came from the request, ascending and apart: every text that is in
    // the context, a message's content before all. No special token is recognised in them.
    std::vector<Range> content;
};

class Template {
  public:
    static Expected<Template> compile(std::string_view source, const Limits& limits = {});

    // A name that the model gives (bos_token): its text is not content, and a context cannot
    // replace it.
    void define(std::string name, std::string text);

    // context: an object with `messages`, `add_generation_prompt`, `tools` (null for none) and what
    // else the template reads. A plain json has forgotten the order of its keys, which tojson
    // shows; an ordered_json keeps it. `now` is strftime_now's. Thread-safe.
    Expected<Rendered> render(const nlohmann::json& context,
                              std::time_t now = std::time(nullptr)) const;
    Expected<Rendered> render(const nlohmann::ordered_json& context,
                              std::time_t now = std::time(nullptr)) const;

    Template(Template&&) noexcept;
    Template& operator=(Template&&) noexcept;
    ~Template();

  private:
    struct Parsed;
    explicit Template(std::unique_ptr<Parsed> parsed);
    template <typename Json>
    Expected<Rendered> render_json(const Json& context, std::time_t now) const;

    std::unique_ptr<Parsed> parsed_;
};

// The tokens of a rendered text: one text, in which special tokens are taken where no byte of them
// came from the request.
Expected<std::vector<TokenId>> encode(const text::Tokenizer& tokenizer, const Rendered& rendered);

// A model's template: chat_template.jinja, or else tokenizer_config.json's (of several the one
// named "default"), with bos_token and eos_token defined. Nothing where the model has none.
Expected<std::optional<Template>> load_template(const std::filesystem::path& directory);

}  // namespace espalier::chat
