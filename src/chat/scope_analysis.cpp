// SPDX-License-Identifier: Apache-2.0
// After jinja2's idtracking.py: what one scope's own statements load and store, in their order.
#include "chat/scope_analysis.hpp"

#include <set>
#include <string_view>
#include <utility>

namespace espalier::chat {
namespace {

using NameSet = std::set<std::string_view>;

struct Symbols {
    const Symbols* parent = nullptr;  // the scope outside
    const Symbols* before = nullptr;  // of a branch: its scope up to the `if`
    NameSet known = {};               // mentioned here
    NameSet unset = {};               // of these, assigned to before anything else

    bool knows(std::string_view name) const {
        return known.contains(name) || (before && before->knows(name));
    }
    bool finds(std::string_view name) const {
        return knows(name) || (parent && parent->finds(name));
    }
    void load(std::string_view name) {
        if (!finds(name)) known.insert(name);
    }
    void store(std::string_view name) {
        if (knows(name)) return;
        known.insert(name);
        if (!parent || !parent->finds(name)) unset.insert(name);
    }
};

// The names that an expression loads.
class Loads {
  public:
    explicit Loads(Symbols& symbols) : symbols_(symbols) {}

    void visit(const ExpressionPtr& expression) {
        if (expression) std::visit([&](const auto& node) { visit_node(node); }, expression->node);
    }
    void visit(const Arguments& arguments) {
        for (const ExpressionPtr& value : arguments.positional) visit(value);
        for (const auto& [name, value] : arguments.named) visit(value);
    }

  private:
    void visit_node(const Constant&) {}
    void visit_node(const Name& node) { symbols_.load(node.name); }
    void visit_node(const Attribute& node) { visit(node.object); }
    void visit_node(const Item& node) {
        visit(node.object);
        visit(node.index);
    }
    void visit_node(const Slice& node) {
        visit(node.object);
        visit(node.begin);
        visit(node.end);
        visit(node.step);
    }
    void visit_node(const Call& node) {
        visit(node.callee);
        visit(node.arguments);
    }
    void visit_node(const Filter& node) {
        visit(node.operand);
        visit(node.arguments);
    }
    void visit_node(const Test& node) {
        visit(node.operand);
        visit(node.arguments);
    }
    void visit_node(const Unary& node) { visit(node.operand); }
    void visit_node(const Binary& node) {
        visit(node.left);
        visit(node.right);
    }
    void visit_node(const Logic& node) {
        visit(node.left);
        visit(node.right);
    }
    void visit_node(const Comparison& node) {
        visit(node.first);
        for (const auto& [op, value] : node.rest) visit(value);
    }
    void visit_node(const Conditional& node) {
        visit(node.condition);
        visit(node.then);
        visit(node.otherwise);
    }
    void visit_node(const Concatenation& node) {
        for (const ExpressionPtr& part : node.parts) visit(part);
    }
    void visit_node(const ListLiteral& node) {
        for (const ExpressionPtr& item : node.items) visit(item);
    }
    void visit_node(const DictLiteral& node) {
        for (const auto& [key, value] : node.entries) {
            visit(key);
            visit(value);
        }
    }

    Symbols& symbols_;
};

// One scope's own statements. Scopes within them are left for later: they see all of this one.
class Stores {
  public:
    explicit Stores(Symbols& symbols) : symbols_(&symbols) {}

    void visit(const Block& block) {
        for (const Statement& statement : block)
            std::visit([&](const auto& node) { visit_node(node); }, statement.node);
    }
    void declare(std::string_view name) { symbols_->known.insert(name); }
    void declare(const Target& target) {
        for (const Target::Place& place : target.places) declare(place.name);
    }
    void load(const ExpressionPtr& expression) { Loads(*symbols_).visit(expression); }

  private:
    void store(const Target& target) {
        for (const Target::Place& place : target.places) {
            if (place.attribute.empty()) {
                symbols_->store(place.name);
            } else {
                symbols_->load(place.name);
            }
        }
    }
    void visit_node(const Data&) {}
    void visit_node(const Output& node) { load(node.value); }
    void visit_node(const If& node) {
        load(node.branches[0].condition);
        NameSet mentioned = visit_branch([&] { visit(node.branches[0].body); });
        mentioned.merge(visit_branch([&] {
            for (std::size_t i = 1; i < node.branches.size(); ++i) {
                load(node.branches[i].condition);
                symbols_->known.merge(visit_branch([&] { visit(node.branches[i].body); }));
            }
        }));
        mentioned.merge(visit_branch([&] { visit(node.otherwise); }));
        symbols_->known.merge(mentioned);
    }
    void visit_node(const For& node) { load(node.sequence); }
    void visit_node(const Set& node) {
        load(node.value);
        store(node.target);
    }
    void visit_node(const SetBlock& node) { store(node.target); }
    void visit_node(const FilterBlock& node) { load(node.filter); }
    void visit_node(const With& node) {
        for (const auto& [target, value] : node.values) load(value);
    }
    void visit_node(const MacroDefinition& node) { symbols_->store(node.macro->name); }
    void visit_node(const Break&) {}
    void visit_node(const Continue&) {}

    // The names that one of several branches mentions. What it assigns is not unset: in the other
    // branches it may come from outside.
    template <typename Visit>
    NameSet visit_branch(Visit&& visit_it) {
        Symbols branch{.parent = symbols_->parent, .before = symbols_};
        Symbols* const outer = std::exchange(symbols_, &branch);
        visit_it();
        symbols_ = outer;
        return std::move(branch.known);
    }

    Symbols* symbols_;
};

void analyze_within(Block& block, const Symbols& symbols);

// `declare` gives the scope's own names before its statements are looked at.
template <typename Declare>
void analyze(ScopedBlock& scope, const Symbols* parent, Declare&& declare) {
    Symbols symbols{.parent = parent};
    Stores stores(symbols);
    declare(stores);
    stores.visit(scope.statements);
    scope.unset.assign(symbols.unset.begin(), symbols.unset.end());
    analyze_within(scope.statements, symbols);
}

struct Within {
    const Symbols& symbols;

    void operator()(If& node) const {
        for (If::Branch& branch : node.branches) analyze_within(branch.body, symbols);
        analyze_within(node.otherwise, symbols);
    }
    void operator()(For& node) const {
        analyze(node.body, &symbols, [&](Stores& stores) { stores.declare(node.target); });
        analyze(node.otherwise, &symbols, [](Stores&) {});
    }
    void operator()(SetBlock& node) const {
        analyze(node.body, &symbols, [](Stores&) {});
    }
    void operator()(FilterBlock& node) const {
        analyze(node.body, &symbols, [&](Stores& stores) { stores.load(node.filter); });
    }
    void operator()(With& node) const {
        analyze(node.body, &symbols, [&](Stores& stores) {
            for (const auto& [target, value] : node.values) stores.declare(target);
        });
    }
    void operator()(MacroDefinition& node) const {
        analyze(node.macro->body, &symbols, [&](Stores& stores) {
            for (const Macro::Parameter& parameter : node.macro->parameters) {
                stores.declare(std::string_view(parameter.name));
                stores.load(parameter.otherwise);
            }
        });
    }
    template <typename Other>
    void operator()(Other&) const {}
};

void analyze_within(Block& block, const Symbols& symbols) {
    for (Statement& statement : block) std::visit(Within{symbols}, statement.node);
}

}  // namespace

void analyze_scopes(ScopedBlock& root) {
    analyze(root, nullptr, [](Stores&) {});
}

}  // namespace espalier::chat
