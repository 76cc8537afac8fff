// SPDX-License-Identifier: Apache-2.0
#include "chat/template.hpp"

#include <nlohmann/json.hpp>

#include "chat/from_json.hpp"
#include "chat/interpreter.hpp"
#include "chat/parser.hpp"
#include "text/utf8.hpp"

namespace espalier::chat {
namespace {

// The border behind which failures are values.
template <typename Work>
auto guarded(Work&& work) -> Expected<decltype(work())> {
    try {
        return work();
    } catch (const Failure& failure) {
        if (failure.line == 0) return fail(failure.kind, "{}", failure.message);
        return fail(failure.kind, "line {}: {}", failure.line, failure.message);
    }
}

}  // namespace

struct Template::Parsed {
    Limits limits;
    ScopedBlock block;
    Dict constants;
};

Template::Template(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Expected<Template> Template::compile(std::string_view source, const Limits& limits) {
    if (source.size() > static_cast<std::size_t>(limits.source_bytes))
        return fail(ErrorKind::exhausted, "a template of {} bytes, more than the limit of {}",
                    source.size(), limits.source_bytes);
    if (const std::size_t valid = text::valid_utf8_prefix(source); valid != source.size())
        return fail(ErrorKind::invalid, "the template is not valid UTF-8 at byte {}", valid);
    return guarded([&] {
        return Template(std::make_unique<Parsed>(
            Parsed{.limits = limits, .block = parse(source, limits), .constants = {}}));
    });
}

void Template::define(std::string name, std::string text) {
    parsed_->constants.entries.push_back(
        {std::make_shared<const Text>(std::move(name)), Value(Text(std::move(text)))});
}

template <typename Json>
Expected<Rendered> Template::render_json(const Json& context, std::time_t now) const {
    if (!context.is_object())
        return fail(ErrorKind::invalid, "a template's context is {}, expected an object",
                    context.type_name());
    return guarded([&] {
        Budget budget(parsed_->limits);
        const Value names = from_json(context, budget);
        Text text = Interpreter(parsed_->constants, *names.dict(), budget, now).run(parsed_->block);
        Rendered rendered;
        rendered.content.assign(text.content().begin(), text.content().end());
        rendered.text = std::move(text).take_bytes();
        return rendered;
    });
}

Expected<Rendered> Template::render(const nlohmann::json& context, std::time_t now) const {
    return render_json(context, now);
}
Expected<Rendered> Template::render(const nlohmann::ordered_json& context, std::time_t now) const {
    return render_json(context, now);
}

Expected<std::vector<TokenId>> encode(const text::Tokenizer& tokenizer, const Rendered& rendered) {
    return tokenizer.encode_mixed(rendered.text, rendered.content);
}

}  // namespace espalier::chat
