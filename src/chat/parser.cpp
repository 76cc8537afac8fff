// SPDX-License-Identifier: Apache-2.0
#include "chat/parser.hpp"

#include <algorithm>
#include <initializer_list>

#include "chat/budget.hpp"
#include "chat/expression_parser.hpp"
#include "chat/scope_analysis.hpp"

namespace espalier::chat {
namespace {

using Names = std::initializer_list<std::string_view>;

class Parser : ExpressionParser {
  public:
    using ExpressionParser::ExpressionParser;

    Block run() {
        return with_line(line_, [&] {
            Block block = parse_block({});
            if (current().kind != Kind::end) refuse_current("a statement");
            return block;
        });
    }

  private:
    // Statements up to a tag that one of `ends` names (its name is current then), or to the end.
    Block parse_block(Names ends) {
        const DepthGuard guard(nesting_, limits().nesting, "statements");
        Block block;
        while (current().kind != Kind::end) {
            line_ = current().line;
            if (current().kind == Kind::data) {
                const int line = current().line;
                block.push_back({line, Data{std::make_shared<const Text>(take().text)}});
            } else if (current().kind == Kind::variable_begin) {
                const int line = take().line;
                block.push_back({line, Output{parse_tuple(true)}});
                if (current().kind != Kind::variable_end) refuse_current("'}}'");
                take();
            } else {
                take();
                if (current().kind != Kind::name) refuse_current("the name of a statement");
                if (std::ranges::find(ends, current().text) != ends.end()) return block;
                parse_statement(block);
                expect_block_end();
            }
        }
        if (ends.size() > 0)
            refuse(ErrorKind::invalid, current().line, "the template ends where '{}' is expected",
                   *(ends.end() - 1));
        return block;
    }

    // The body of a statement whose tag ends here, and the name of the tag that closes it.
    Block parse_body(Names ends) {
        take_symbol(":");
        expect_block_end();
        return parse_block(ends);
    }
    Block parse_last_body(std::string_view end) {
        Block body = parse_body({end});
        take();
        return body;
    }
    void expect_block_end() {
        if (current().kind != Kind::block_end) refuse_current("'%}'");
        take();
    }

    void parse_statement(Block& block) {
        const int line = current().line;
        const std::string name = take().text;
        if (name == "if") {
            block.push_back({line, parse_if()});
        } else if (name == "for") {
            block.push_back({line, parse_for()});
        } else if (name == "set") {
            parse_set(line, block);
        } else if (name == "macro") {
            block.push_back({line, parse_macro(line)});
        } else if (name == "filter") {
            ExpressionPtr filter = parse_filters(nullptr, true);
            block.push_back({line, FilterBlock{std::move(filter), parse_in_buffer("endfilter")}});
        } else if (name == "with") {
            block.push_back({line, parse_with()});
        } else if (name == "generation") {
            // transformers' own: marks what the assistant wrote; a scope of its own here.
            block.push_back({line, With{{}, parse_in_buffer("endgeneration")}});
        } else if (name == "break" || name == "continue") {
            if (loops_ == 0)
                refuse(ErrorKind::invalid, line, "'{}' outside of a loop, or in a block of its own",
                       name);
            if (name == "break") {
                block.push_back({line, Break{}});
            } else {
                block.push_back({line, Continue{}});
            }
        } else {
            refuse(ErrorKind::unsupported, line, "the statement '{}' is not supported", name);
        }
    }

    If parse_if() {
        If statement;
        while (true) {
            ExpressionPtr condition = parse_tuple(false);
            Block body = parse_body({"elif", "else", "endif"});
            statement.branches.push_back({std::move(condition), std::move(body)});
            const std::string end = take().text;
            if (end == "elif") continue;
            if (end == "else") statement.otherwise = parse_last_body("endif");
            return statement;
        }
    }

    For parse_for() {
        For statement;
        statement.target = parse_target(false);
        if (std::ranges::any_of(statement.target.places,
                                [](const Target::Place& place) { return place.name == "loop"; }))
            refuse(ErrorKind::invalid, current().line, "a loop cannot assign to 'loop'");
        if (!take_name("in")) refuse_current("'in'");
        statement.sequence = parse_tuple(false);
        if (take_name("if")) statement.condition = parse_expression();
        if (current().is_name("recursive"))
            refuse(ErrorKind::unsupported, current().line, "recursive loops are not supported");
        ++loops_;
        ++scopes_;
        statement.body.statements = parse_body({"endfor", "else"});
        --loops_;
        if (take().text == "else") statement.otherwise.statements = parse_last_body("endfor");
        --scopes_;
        return statement;
    }

    void parse_set(int line, Block& block) {
        Target target = parse_target(true);
        if (take_symbol("=")) {
            ExpressionPtr value = parse_tuple(true);
            block.push_back({line, Set{std::move(target), std::move(value)}});
            return;
        }
        ExpressionPtr filter = parse_filters(nullptr, false);
        ScopedBlock body = parse_in_buffer("endset");
        block.push_back({line, SetBlock{std::move(target), std::move(filter), std::move(body)}});
    }

    With parse_with() {
        With statement;
        while (current().kind != Kind::block_end) {
            if (!statement.values.empty()) expect_symbol(",");
            Target target = parse_target(false);
            expect_symbol("=");
            statement.values.emplace_back(std::move(target), parse_expression());
        }
        ++scopes_;
        statement.body.statements = parse_last_body("endwith");
        --scopes_;
        return statement;
    }

    // A body whose output goes elsewhere: a loop around it is out of reach.
    ScopedBlock parse_in_buffer(std::string_view end) {
        const std::int64_t loops = std::exchange(loops_, 0);
        ++scopes_;
        ScopedBlock body{.statements = parse_last_body(end)};
        --scopes_;
        loops_ = loops;
        return body;
    }

    MacroDefinition parse_macro(int line) {
        // So a macro sees the template's own names and none of a loop's that may be over.
        if (scopes_ > 0)
            refuse(ErrorKind::unsupported, line,
                   "a macro inside of a loop, a block or another macro is not supported");
        auto macro = std::make_unique<Macro>();
        macro->name = expect_name();
        expect_symbol("(");
        while (!current().is_symbol(")")) {
            if (!macro->parameters.empty()) expect_symbol(",");
            Macro::Parameter parameter{expect_name(), nullptr};
            if (take_symbol("=")) {
                parameter.otherwise = parse_expression();
            } else if (!macro->parameters.empty() && macro->parameters.back().otherwise) {
                refuse(ErrorKind::invalid, line, "parameter '{}' needs a default value",
                       parameter.name);
            }
            macro->parameters.push_back(std::move(parameter));
        }
        expect_symbol(")");
        macro->body = parse_in_buffer("endmacro");
        return {std::move(macro)};
    }

    // name, name.attribute (with_attributes), or a tuple of such.
    Target parse_target(bool with_attributes) {
        Target target;
        const bool in_parentheses = take_symbol("(");
        while (true) {
            if (current().is_symbol("("))
                refuse(ErrorKind::unsupported, current().line,
                       "assigning to a tuple in a tuple is not supported");
            target.places.push_back(parse_place(with_attributes));
            if (!take_symbol(",")) break;
            target.unpacks = true;
            if (current().kind != Kind::name || current().is_name("in")) break;
        }
        if (in_parentheses) expect_symbol(")");
        return target;
    }

    Target::Place parse_place(bool with_attributes) {
        static constexpr std::string_view kConstants[] = {"true",  "True", "false",
                                                          "False", "none", "None"};
        Target::Place place{expect_name()};
        if (std::ranges::find(kConstants, place.name) != std::end(kConstants))
            refuse(ErrorKind::invalid, current().line, "cannot assign to '{}'", place.name);
        if (with_attributes && take_symbol(".")) place.attribute = expect_name();
        return place;
    }

    int line_ = 1;
    std::int64_t nesting_ = 0;
    std::int64_t loops_ = 0;   // around this statement, as far as break and continue reach
    std::int64_t scopes_ = 0;  // around this statement: loops, blocks, macros
};

}  // namespace

ScopedBlock parse(std::string_view source, const Limits& limits) {
    ScopedBlock root{.statements = Parser(tokenize(source), limits).run()};
    analyze_scopes(root);
    return root;
}

}  // namespace espalier::chat
