// SPDX-License-Identifier: Apache-2.0
// Templates and requests that mean harm end with an error, soon.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "chat/template.hpp"

namespace espalier::chat {
namespace {

const nlohmann::json kContext = {{"messages", {{{"role", "user"}, {"content", "hello"}}}},
                                 {"s", std::string(1000, 'a')},
                                 {"d", {{"k", 1}}}};

Error error_of(const std::string& source, const Limits& limits = {},
               const nlohmann::json& context = kContext) {
    const auto compiled = Template::compile(source, limits);
    if (!compiled) return compiled.error();
    const auto rendered = compiled->render(context);
    if (!rendered) return rendered.error();
    ADD_FAILURE() << source << "\nrenders as " << rendered->text.size() << " bytes";
    return {};
}

std::string repeated(const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
}

TEST(Hostile, EndlessWorkIsCutShort) {
    const char* templates[] = {
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{{ f(n + 1) ~ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='x') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}"
        "{% endfor %}",
        "{% set ns = namespace(x=1) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}",
        "{% set ns = namespace(x=1) %}{% for i in range(1000) %}{% set ns.x = {'a': ns.x} %}"
        "{% endfor %}{{ ns.x|tojson }}",
        "{{ 'x' * 999999999999 }}",
        "{{ [1] * 999999999999 }}",
        "{{ s|replace('', s)|replace('', s)|replace('', s) }}",
        "{% set ns = namespace(x=2) %}{% for i in range(1000) %}{% set ns.x = ns.x * ns.x %}"
        "{% endfor %}",
        "{% for i in range(99999) %}{{ s }}{% endfor %}",
        "{{ range(100001) }}",
        "{{ 2 ** 999999999 }}",
        "{{ d|tojson(indent=999999999) }}",
    };
    for (const char* source : templates) {
        const Error error = error_of(source);
        EXPECT_TRUE(error.kind == ErrorKind::exhausted || error.kind == ErrorKind::unsupported)
            << source << "\n"
            << error.message;
    }
}

TEST(Hostile, NestingIsBounded) {
    for (const std::string& source :
         {repeated("{% if true %}", 5000), repeated("(", 20000),
          "{{ " + repeated("(", 20000) + " }}",
          "{{ " + repeated("[", 20000) + repeated("]", 20000) + " }}",
          "{{ " + repeated("not ", 20000) + "x }}", "{{ " + repeated("-", 20000) + "1 }}",
          "{{ 1" + repeated(" + 1", 20000) + " }}", "{{ x" + repeated(".a", 20000) + " }}",
          "{{ x" + repeated("|trim", 20000) + " }}", "{{ x" + repeated("()", 20000) + " }}",
          "{{ x" + repeated(" if x else x", 10000) + " }}", "{{ {'a': " + repeated("{'a': ", 9000),
          "{{ 1" + repeated(" < 1", 20000) + "] }}",
          "{{ 'a'" + repeated(" is string", 9000) + " }}"}) {
        if (source[0] == '(') continue;  // plain text
        EXPECT_FALSE(error_of(source).message.empty()) << source.substr(0, 40);
    }
}

TEST(Hostile, DeepButAllowedTreesFitTheStack) {
    // The deepest expression, inside the deepest call: the counts of limits.hpp, together.
    const std::string chain = "1" + repeated(" + 1", 390);
    EXPECT_EQ(Template::compile("{{ " + chain + " }}")->render(kContext)->text, "391");
    const Error error =
        error_of("{% macro f() %}{{ " + chain + " + f()|int }}{% endmacro %}{{ f() }}");
    EXPECT_EQ(error.kind, ErrorKind::exhausted) << error.message;
}

TEST(Hostile, InternalsAreOutOfReach) {
    const std::pair<const char*, const char*> cases[] = {
        {"{{ ''.__class__ }}", "line 1: '__class__' would be an internal of the interpreter"},
        {"{{ ''['__class__'] }}", "line 1: '__class__' would be an internal of the interpreter"},
        {"{{ d['__init__'] }}", "line 1: '__init__' would be an internal of the interpreter"},
        {"{{ messages|map(attribute='__class__')|list }}",
         "line 1: '__class__' would be an internal of the interpreter"},
        {"{{ ''.split }}", "line 1: the method 'split' of a str object must be called"},
        {"{{ d.update({}) }}", "line 1: the method 'update' of a dict is not supported"},
        {"{{ messages.append(1) }}",
         "line 1: the method 'append' of a list object is not supported"},
        {"{{ 'a'.format(1) }}", "line 1: the method 'format' of a text is not supported"},
        {"{% set ns = namespace() %}{% set ns._x = 1 %}",
         "line 1: a namespace cannot hold '_x', which begins with '_'"},
        {"{{ self }}{{ cycler(1) }}", "line 1: 'cycler' is not supported"},
        {"{{ range }}", "line 1: printing a function is not supported"},
    };
    for (const auto& [source, message] : cases) EXPECT_EQ(error_of(source).message, message);
}

TEST(Hostile, ErrorsNameConstructAndLine) {
    const std::pair<const char*, const char*> cases[] = {
        {"\n\n{% block x %}{% endblock %}", "line 3: the statement 'block' is not supported"},
        {"{% call f() %}{% endcall %}", "line 1: the statement 'call' is not supported"},
        {"{% nonsense %}", "line 1: the statement 'nonsense' is not supported"},
        {"\n{{ x|batch(2) }}", "line 2: the filter 'batch' is not supported"},
        {"\n{{ x is escaped }}", "line 2: the test 'escaped' is not supported"},
        {"{% for x in y recursive %}{% endfor %}", "line 1: recursive loops are not supported"},
        {"{{ f(*x) }}", "line 1: '*' before an argument is not supported"},
        {"{% if x %}\n\n", "line 2: the template ends where 'endif' is expected"},
        {"{% for x in y %}{% macro m() %}{% endmacro %}{% endfor %}",
         "line 1: a macro inside of a loop, a block or another macro is not supported"},
        {"\n{{ messages[0].missing.more }}", "line 2: 'dict object' has no attribute 'missing'"},
        {"{{ nobody.x }}", "line 1: 'nobody' is undefined"},
        {"a\n{{ raise_exception('roles must alternate') }}", "line 2: roles must alternate"},
        {"{% set it = messages|map(attribute='role') %}",
         "line 1: a variable that holds an iterator is not supported: jinja2 goes through it once; "
         "|list makes a list of it"},
        {"{{ 'é'|upper }}", "line 1: changing the case of letters outside ASCII is not supported"},
        {"{{ 0x10 }}", "line 1: a number that begins with 0 is not supported"},
        {"{{ 'a' % 1 }}", "line 1: formatting a text with '%' is not supported"},
        {"{% for x in [1] %}{{ loop }}{% endfor %}",
         "line 1: 'loop' is supported with an attribute alone, as in loop.first"},
        {"{{ 'a' ? 1 }}", "line 1: unexpected character '?'"},
        {"{{ \"a\\N{DASH}\" }}", "line 1: a string has the escape \\N, not supported"},
        {"{{ '\\ud800' }}", "line 1: a string has the escape of 0xd800, which is no character"},
    };
    for (const auto& [source, message] : cases) EXPECT_EQ(error_of(source).message, message);
}

TEST(Hostile, RequestsAreChecked) {
    const auto compiled = Template::compile("{% for m in messages %}{{ m.content }}{% endfor %}");
    const auto message_of = [&](const nlohmann::json& context) {
        const auto rendered = compiled->render(context);
        return rendered ? rendered->text : "error: " + rendered.error().message;
    };
    EXPECT_EQ(message_of({{"messages", {{{"content", "a\xff"}}}}}),
              "error: messages[0].content: not valid UTF-8 at byte 1");
    EXPECT_EQ(message_of({{"messages", {{{"a\xff", "a"}}}}}),
              "error: messages[0]: not valid UTF-8 at byte 1");
    EXPECT_EQ(message_of(nlohmann::json::array()),
              "error: a template's context is array, expected an object");
    nlohmann::json deep = "x";
    for (int i = 0; i < 70; ++i) deep = nlohmann::json::array({deep});
    EXPECT_TRUE(message_of({{"messages", deep}}).starts_with("error: messages[0][0]"));
    EXPECT_EQ(message_of({{"messages", 3}}), "error: line 1: a int object is not iterable");
    EXPECT_EQ(message_of({{"messages", {1}}}), "");
}

TEST(Hostile, LimitsAreLimits) {
    EXPECT_EQ(error_of(std::string(11, 'x'), {.source_bytes = 10}).kind, ErrorKind::exhausted);
    EXPECT_EQ(error_of("0123456789x", {.output_bytes = 10}).kind, ErrorKind::exhausted);
    EXPECT_EQ(error_of("{{ s }}{{ s }}", {.output_bytes = 1999}).kind, ErrorKind::exhausted);
    EXPECT_EQ(error_of("{% for x in s %}{% endfor %}", {.steps = 1000}).kind, ErrorKind::exhausted);
    EXPECT_EQ(error_of("x", {.touched_bytes = 10}).kind, ErrorKind::exhausted);
    EXPECT_EQ(error_of("a\xff").kind, ErrorKind::invalid);
}

}  // namespace
}  // namespace espalier::chat
