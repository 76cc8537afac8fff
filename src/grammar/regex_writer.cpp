// SPDX-License-Identifier: Apache-2.0
#include "grammar/regex_writer.hpp"

#include <fmt/format.h>

#include "grammar/regex.hpp"
#include "grammar/regex_automaton.hpp"

namespace espalier::grammar {
namespace {

// Every state has masks of its own, so a whole expression becomes an automaton only where that is
// small; an endless repetition that can be read in several ways has no other way. Where that has
// many states when it is deterministic, a parser stands on several of its characters at once, but
// never on more than it has.
constexpr std::size_t kStatesOfAWhole = 64;
constexpr std::size_t kEdgesOfAWhole = 512;
constexpr std::size_t kStatesOfARepetition = 128;
constexpr std::size_t kEdgesOfARepetition = 2048;

bool is_endless(const RegexNode& node) {
    if (node.kind == RegexNode::Kind::repetition && !node.most) return true;
    for (const RegexNode& child : node.children)
        if (is_endless(child)) return true;
    return false;
}

std::string counts(const RegexNode& node) {
    if (!node.most && node.least == 0) return "*";
    if (!node.most && node.least == 1) return "+";
    if (!node.most) return fmt::format("{{{},}}", node.least);
    if (node.least == 0 && *node.most == 1) return "?";
    return fmt::format("{{{},{}}}", node.least, *node.most);
}

}  // namespace

Expected<std::string> RegexWriter::run(const RegexNode& node) {
    if (node.is_empty()) return std::string("\"\"");
    ESPALIER_ASSIGN_OR_RETURN(const std::string root, whole(node));
    return root + rules_;
}

// Without endless parts a text is short, and counted characters are better counted.
Expected<std::string> RegexWriter::whole(const RegexNode& node) {
    const auto read = is_endless(node) ? RegexAutomaton::of(node) : std::nullopt;
    if (!read || !read->is_ambiguous()) return written(node);
    if (const auto dfa = read->determinise(kStatesOfAWhole)) return automaton(*dfa);
    if (const auto graph = read->states(kEdgesOfAWhole)) return automaton(*graph);
    return written(node);
}

Expected<std::string> RegexWriter::written(const RegexNode& node) {
    switch (node.kind) {
        case RegexNode::Kind::empty:
            return std::string();
        case RegexNode::Kind::characters:
            return written_class(node.set);
        case RegexNode::Kind::sequence: {
            std::string text;
            for (const RegexNode& child : node.children) {
                ESPALIER_ASSIGN_OR_RETURN(const std::string part, written(child));
                if (part.empty()) continue;
                if (!text.empty()) text += " ";
                text += part;
            }
            return text.empty() ? text : fmt::format("({})", text);
        }
        case RegexNode::Kind::choice:
            return choice(node);
        case RegexNode::Kind::repetition:
            return repetition(node);
    }
    return fail(ErrorKind::invalid, "a regular expression of no kind");
}

// An empty alternative makes the others optional: xgrammar reads no empty one.
Expected<std::string> RegexWriter::choice(const RegexNode& node) {
    std::string text;
    bool optional = false;
    for (const RegexNode& child : node.children) {
        ESPALIER_ASSIGN_OR_RETURN(const std::string part, written(child));
        optional = optional || part.empty();
        if (part.empty()) continue;
        if (!text.empty()) text += " | ";
        text += part;
    }
    if (text.empty()) return text;
    return fmt::format("({}){}", text, optional ? "?" : "");
}

Expected<std::string> RegexWriter::repetition(const RegexNode& node) {
    const RegexNode& body = node.children[0];
    if (!node.most && body.kind != RegexNode::Kind::characters) {
        const auto repeated = RegexAutomaton::of(node);
        if (!repeated || repeated->is_ambiguous()) {
            auto graph = repeated ? repeated->determinise(kStatesOfARepetition) : std::nullopt;
            if (!graph && repeated) graph = repeated->states(kEdgesOfARepetition);
            if (!graph)
                return fail(ErrorKind::exhausted,
                            "the regular expression: an endless repetition that can be read in "
                            "several ways has more than {} edges as an automaton",
                            kEdgesOfARepetition);
            return automaton(*graph);
        }
    }
    ESPALIER_ASSIGN_OR_RETURN(const std::string part, written(body));
    if (part.empty()) return part;
    if (body.kind != RegexNode::Kind::repetition) return part + counts(node);
    return fmt::format("({}){}", part, counts(node));
}

std::string RegexWriter::automaton(const StateGraph& graph) {
    const int number = automata_++;
    const auto name = [number](std::size_t state) {
        return fmt::format("state{}_{}", number, state);
    };
    for (std::size_t state = 0; state < graph.states.size(); ++state) {
        std::string body = graph.states[state].accepting ? "\"\"" : "";
        for (const StateGraph::Edge& edge : graph.states[state].edges) {
            if (!body.empty()) body += " | ";
            body += written_class(edge.set);
            if (!graph.states[edge.to].edges.empty()) body += " " + name(edge.to);
        }
        if (state == 0 || !graph.states[state].edges.empty())
            rules_ += fmt::format("\n{} ::= {}", name(state), body);
    }
    return name(0);
}

}  // namespace espalier::grammar
