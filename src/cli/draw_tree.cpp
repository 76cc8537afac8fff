// SPDX-License-Identifier: Apache-2.0
#include "cli/draw_tree.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <variant>

namespace espalier::cli {
namespace {

constexpr std::size_t kLabelColumn = 44;

// A traced tree that is a tree, cut to what its row verified. Files are not trusted.
std::optional<DrawnTree> verified(const trace::Step& step, const trace::Tree& tree) {
    std::size_t nodes = 0;
    for (const trace::Row& row : step.rows)
        if (row.request == tree.request && row.nodes > 0)
            nodes = static_cast<std::size_t>(row.nodes);
    if (nodes < 2 || nodes > tree.tokens.size() || nodes > tree.parents.size()) return std::nullopt;
    DrawnTree drawn;
    drawn.step = step.number;
    drawn.request = tree.request;
    for (std::size_t i = 0; i < nodes; ++i) {
        if (i > 0 && (tree.parents[i] < 0 || tree.parents[i] >= static_cast<std::int32_t>(i)))
            return std::nullopt;
        drawn.tokens.push_back(tree.tokens[i]);
        drawn.parents.push_back(i == 0 ? -1 : tree.parents[i]);
        if (nodes <= tree.drafters.size()) drawn.drafters.push_back(tree.drafters[i]);
    }
    for (const trace::Outcome& outcome : step.outcomes) {
        if (outcome.request != tree.request || outcome.path.empty()) continue;
        for (const std::int32_t node : outcome.path)
            if (node < 0 || node >= static_cast<std::int32_t>(nodes)) return std::nullopt;
        drawn.path = outcome.path;
        if (outcome.drawn.size() == outcome.path.size()) drawn.next = outcome.drawn.back();
    }
    if (drawn.path.empty()) return std::nullopt;
    return drawn;
}

// Score of a tree by how much there is to see in it.
double interest(const DrawnTree& tree) {
    if (tree.tokens.size() > 20) return 0;
    double branches = 0;
    for (std::size_t i = 1; i < tree.path.size(); ++i) {
        const auto first = std::find(tree.parents.begin(), tree.parents.end(), tree.path[i - 1]);
        branches += first - tree.parents.begin() != tree.path[i] ? 1 : 0;
    }
    return static_cast<double>(tree.path.size() - 1) + 1.5 * branches;
}

std::string shown(const std::string& text) {
    std::string out;
    for (const char c : text) {
        if (c == '\n')
            out += "\\n";
        else if (c == '\t')
            out += "\\t";
        else if (static_cast<unsigned char>(c) < 32)
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        else
            out += c;
    }
    return out;
}

// Columns that a text takes, one per code point.
std::size_t columns(const std::string& text) {
    return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
}

class Drawing {
  public:
    Drawing(const DrawnTree& tree, const std::vector<std::string>& drafters,
            const text::Tokenizer& tokenizer, bool colour)
        : tree_(tree), drafters_(drafters), tokenizer_(tokenizer), colour_(colour) {}

    std::string operator()() {
        line("", 0);
        children("", 0);
        if (tree_.next >= 0)
            out_ += fmt::format("{} accepted, then the target's own {}\n", tree_.path.size() - 1,
                                text(tree_.next));
        return std::move(out_);
    }

  private:
    std::string text(std::int32_t token) const {
        return fmt::format("\u201c{}\u201d", shown(tokenizer_.decode(std::vector{token}, false)));
    }
    bool accepted(std::int32_t node) const {
        return std::find(tree_.path.begin(), tree_.path.end(), node) != tree_.path.end();
    }
    std::string who(std::int32_t node) const {
        if (node == 0 || tree_.drafters.empty()) return {};
        std::vector<std::string> names;
        const std::int32_t bits = tree_.drafters[static_cast<std::size_t>(node)];
        for (std::size_t d = 0; d < 8; ++d)
            if ((bits >> d & 1) != 0)
                names.push_back(d < drafters_.size() ? drafters_[d] : fmt::format("drafter {}", d));
        return fmt::format("{}", fmt::join(names, " + "));
    }
    void line(const std::string& before, std::int32_t node) {
        const bool lit = accepted(node);
        const std::string label = fmt::format("{} {}", lit ? "●" : "○",
                                              text(tree_.tokens[static_cast<std::size_t>(node)]));
        const std::size_t used = columns(before) + columns(label);
        const std::string names = who(node);
        const std::string gap(names.empty()         ? 0
                              : used < kLabelColumn ? kLabelColumn - used
                                                    : 2,
                              ' ');
        if (colour_)
            out_ += fmt::format("\033[2m{}\033[0m{}{}\033[0m{}\033[2m{}\033[0m\n", before,
                                lit ? "\033[1;32m" : "\033[2m", label, gap, names);
        else
            out_ += fmt::format("{}{}{}{}\n", before, label, gap, names);
    }
    void children(const std::string& before, std::int32_t node) {
        std::vector<std::int32_t> below;
        for (std::size_t i = 1; i < tree_.parents.size(); ++i)
            if (tree_.parents[i] == node) below.push_back(static_cast<std::int32_t>(i));
        for (const std::int32_t child : below) {
            const bool last = child == below.back();
            line(before + (last ? "└─" : "├─"), child);
            children(before + (last ? "  " : "│ "), child);
        }
    }

    const DrawnTree& tree_;
    const std::vector<std::string>& drafters_;
    const text::Tokenizer& tokenizer_;
    bool colour_;
    std::string out_;
};

}  // namespace

Expected<std::vector<DrawnTree>> trees_of(trace::Reader& reader, std::int64_t step) {
    std::vector<DrawnTree> found;
    double most = -1;
    for (;;) {
        ESPALIER_ASSIGN_OR_RETURN(const std::optional<trace::Event> event, reader.next());
        if (!event) return found;
        const auto* one = std::get_if<trace::Step>(&*event);
        if (one == nullptr || (step > 0 && one->number != step)) continue;
        for (const trace::Tree& tree : one->trees) {
            std::optional<DrawnTree> drawn = verified(*one, tree);
            if (!drawn) continue;
            if (step == 0 && interest(*drawn) <= most) continue;
            if (step == 0) {
                most = interest(*drawn);
                found.clear();
            }
            found.push_back(std::move(*drawn));
        }
    }
}

std::string draw(const DrawnTree& tree, const std::vector<std::string>& drafters,
                 const text::Tokenizer& tokenizer, bool colour) {
    return Drawing(tree, drafters, tokenizer, colour)();
}

}  // namespace espalier::cli
