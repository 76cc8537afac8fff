// SPDX-License-Identifier: Apache-2.0
#include "grammar/endless_rule.hpp"

#include <cstdint>
#include <vector>

#include "grammar_impl.h"

namespace espalier::grammar {
namespace {

using Rules = xgrammar::Grammar::Impl;
using Kind = Rules::GrammarExprType;

// A least fixed point: a rule ends where its body does so with rules that are known to end.
class EndlessRules {
  public:
    explicit EndlessRules(const Rules& rules)
        : rules_(rules), ends_(static_cast<std::size_t>(rules.NumRules()), false), seen_(ends_) {}

    std::optional<std::string> first() {
        for (bool more = true; more;) {
            more = false;
            for (std::int32_t rule = 0; rule < rules_.NumRules(); ++rule)
                if (!of(ends_, rule) && ends(rules_.GetRule(rule).body_expr_id))
                    more = of(ends_, rule) = true;
        }
        std::vector<std::int32_t> open = {rules_.GetRootRuleId()};
        of(seen_, open.front()) = true;
        while (!open.empty()) {
            const std::int32_t rule = open.back();
            open.pop_back();
            if (!of(ends_, rule)) return rules_.GetRule(rule).name;
            visit(rules_.GetRule(rule).body_expr_id, open);
        }
        return std::nullopt;
    }

  private:
    static std::vector<bool>::reference of(std::vector<bool>& facts, std::int32_t rule) {
        return facts[static_cast<std::size_t>(rule)];
    }

    bool ends(std::int32_t id) {
        const auto expression = rules_.GetGrammarExpr(id);
        switch (expression.type) {
            case Kind::kRuleRef:
                return of(ends_, expression[0]);
            case Kind::kRepeat:
                return expression[1] == 0 || of(ends_, expression[0]);
            case Kind::kSequence:
                for (const std::int32_t part : expression)
                    if (!ends(part)) return false;
                return true;
            case Kind::kChoices:
                for (const std::int32_t part : expression)
                    if (ends(part)) return true;
                return false;
            default:  // texts, classes, tokens; dispatches, whose free text may end anywhere
                return true;
        }
    }

    void visit(std::int32_t id, std::vector<std::int32_t>& open) {
        const auto expression = rules_.GetGrammarExpr(id);
        if (expression.type == Kind::kSequence || expression.type == Kind::kChoices)
            for (const std::int32_t part : expression) visit(part, open);
        if (expression.type != Kind::kRuleRef && expression.type != Kind::kRepeat) return;
        if (of(seen_, expression[0])) return;
        of(seen_, expression[0]) = true;
        open.push_back(expression[0]);
    }

    const Rules& rules_;
    std::vector<bool> ends_, seen_;
};

}  // namespace

std::optional<std::string> endless_rule(const xgrammar::Grammar& grammar) {
    return EndlessRules(*grammar.ImplPtr()).first();
}

}  // namespace espalier::grammar
