// SPDX-License-Identifier: Apache-2.0
// What the commands are made of: figures, ranges, tables, the header of a file of logits.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "cli/csv.hpp"
#include "cli/draft_setting.hpp"
#include "cli/draw_tree.hpp"
#include "cli/engine_figures.hpp"
#include "cli/eval_figures.hpp"
#include "cli/expectation.hpp"
#include "cli/logits_file.hpp"
#include "cli/terminal.hpp"
#include "support/paths.hpp"
#include "trace/line.hpp"

namespace espalier::cli {
namespace {

// 20 GB of weights, 16 of them in experts; a token reads 2 GB, 1 of it experts.
TEST(Expectation, SaysWhatBounds) {
    const ModelFacts model{20e9, 16e9, 2e9, 1e9, 1e5, 1000};
    MachineFacts machine{.memory_bytes = 40e9, .memory_rate = 20e9, .disk_rate = 0};
    Expectation expected = expect(model, machine);
    EXPECT_EQ(expected.bound, Expectation::Bound::memory);
    EXPECT_DOUBLE_EQ(expected.tokens_per_second, 10);
    EXPECT_DOUBLE_EQ(expected.room_tokens, 160'000);
    EXPECT_NE(context_text(expected, model).find("1000 tokens"), std::string::npos);

    // Nine tenths of it hold what is fixed and, of the 8 GB left, 6 of experts: 5/8 come from disk.
    machine = {.memory_bytes = 12e9 / 0.9, .memory_rate = 20e9, .disk_rate = 1e9};
    expected = expect(model, machine);
    EXPECT_EQ(expected.bound, Expectation::Bound::disk);
    EXPECT_NEAR(expected.experts_in_memory, 0.375, 1e-12);
    EXPECT_NEAR(expected.tokens_per_second, 1 / (0.1 + 0.625), 1e-9);
    EXPECT_NEAR(expected.room_tokens, 2e9 / 1e5, 1e-3);
    EXPECT_NE(speed_text(expected, model, machine).find("38 % stay in memory"), std::string::npos)
        << speed_text(expected, model, machine);
    machine.disk_rate = 0;
    expected = expect(model, machine);
    EXPECT_EQ(expected.tokens_per_second, 0);
    EXPECT_NE(speed_text(expected, model, machine).find("could not be measured"),
              std::string::npos);

    machine.memory_bytes = 4e9;
    expected = expect(model, machine);
    EXPECT_EQ(expected.bound, Expectation::Bound::size);
    // A dense model has nothing that could stay on disk.
    machine.memory_bytes = 12e9;
    EXPECT_EQ(expect({20e9, 0, 20e9, 0, 1e5, 1000}, machine).bound, Expectation::Bound::size);
    ModelFacts longer = model;
    longer.context = 1e6;
    machine.memory_bytes = 40e9;
    EXPECT_TRUE(context_text(expect(longer, machine), longer).starts_with("bound by memory"));
}

// Four tokens of which one has half and the others a sixth each: 1 bit, and log2 6.
TEST(EvalFigures, AreThoseOfTheDefinition) {
    const float half = std::log(3.0f);
    const std::vector<float> logits = {0, half, 0, 0}, flat = {5, 5, 5, 5};
    EvalFigures figures;
    figures.add(logits, 1, 4);
    figures.add(logits, 3, 1);
    EXPECT_EQ(figures.tokens(), 2);
    EXPECT_NEAR(figures.bits_per_token(), (1 + std::log2(6.0)) / 2, 1e-6);
    EXPECT_NEAR(figures.bits_per_byte(), (1 + std::log2(6.0)) / 5, 1e-6);
    EXPECT_EQ(figures.mean_kl_bits(), 0.0);
    figures.compare(logits, logits);
    EXPECT_NEAR(figures.mean_kl_bits(), 0.0, 1e-12);
    EXPECT_EQ(figures.top_agreement(), 1.0);
    figures.compare(logits, flat);  // Σ ¼ log2(¼ / q)
    EXPECT_NEAR(figures.mean_kl_bits(), (0.25 * (-1) + 0.75 * std::log2(1.5)) / 2, 1e-6);
    EXPECT_EQ(figures.top_agreement(), 0.5);
}

TEST(EngineFigures, EachHasANameOfItsOwnAndIsANumber) {
    std::set<std::string> names;
    const LoadResult nothing;
    for (const Figure& figure : engine_figures()) {
        EXPECT_TRUE(names.insert(figure.name).second) << figure.name;
        EXPECT_TRUE(std::isfinite(figure.of(nothing))) << figure.name;
    }
    EXPECT_GT(names.size(), 20u);
}

TEST(EngineFigures, ReadTheResult) {
    LoadResult result;
    result.seconds = 2;
    result.requests = 4;
    result.tokens = 100;
    result.first_token = {0.010, 0.020, 0.030};
    result.status.steps = 10;
    result.status.sums.busy = 1'000'000'000;
    result.status.sums.steps.model = 750'000'000;
    result.status.sums.steps.sampling = 50'000'000;
    result.status.sums.steps.committed = 30;
    result.status.sums.steps.accepted = 10;
    result.status.totals.tokens.drafts = 40;
    const auto value = [&](const std::string& name) {
        for (const Figure& figure : engine_figures())
            if (name == figure.name) return figure.of(result);
        return std::nan("");
    };
    EXPECT_DOUBLE_EQ(value("requests/s"), 2);
    EXPECT_DOUBLE_EQ(value("output tokens/s"), 50);
    EXPECT_DOUBLE_EQ(value("first token p50 ms"), 20);
    EXPECT_DOUBLE_EQ(value("first token p99 ms"), 30);
    EXPECT_DOUBLE_EQ(value("accepted drafts per step"), 0.5);
    EXPECT_DOUBLE_EQ(value("% of these accepted"), 25);
    EXPECT_DOUBLE_EQ(value("ms per step"), 100);
    EXPECT_DOUBLE_EQ(value("% of the time in the model"), 75);
    EXPECT_NEAR(value("% outside model and sampling"), 20, 1e-9);
}

TEST(DraftSetting, IsReadFromAWord) {
    const auto read = [](const std::string& text) {
        const auto setting = DraftSetting::parse(text);
        if (!setting) return std::string("refused");
        return fmt::format("{} {} {} {} {}", fmt::join(setting->drafters, "+"), setting->depth,
                           setting->width, setting->nodes, static_cast<int>(setting->coupling));
    };
    EXPECT_EQ(read("off"), "off 0 0 0 0");
    EXPECT_EQ(read("ngram"), "ngram 0 0 0 0");
    EXPECT_EQ(read("mtp+ngram"), "mtp+ngram 0 0 0 0");
    EXPECT_EQ(read("mtp:4"), "mtp 4 0 0 0");
    EXPECT_EQ(read("mtp:4x3"), "mtp 4 3 0 0");
    EXPECT_EQ(read("mtp:4/9@plain"), "mtp 4 0 9 1");
    EXPECT_EQ(read("eagle3+mtp:4x4/8@coupled"), "eagle3+mtp 4 4 8 0");
    for (const char* wrong :
         {"", "+", "mtp+", "mtp:", "mtp:x", "mtp:4x", "mtp:4/", "mtp:0", "mtp:-1", "mtp:4x2x3",
          "mtp:4/8/9", "mtp@", "mtp@shared", "off:4", "mtp:4.5", "mtp:99999999999"})
        EXPECT_EQ(read(wrong), "refused") << wrong;
    engine::Request request;
    DraftSetting::parse("mtp:4x3/9")->apply_to(request);
    EXPECT_EQ(request.draft_depth, 4);
    EXPECT_EQ(request.draft_width, 3);
    EXPECT_EQ(request.draft_nodes, 9);
}

// A trace of two steps; the second's tree has an accepted path over a later branch.
TEST(DrawTree, ShowsTheAcceptedPathAndWhoProposedIt) {
    trace::Header header;
    header.settings.drafters = {"ngram", "mtp"};
    trace::Step plain, branched;
    plain.number = 1;
    plain.rows = {{0, 5, 2, trace::Form::absorbed, trace::Mask::causal, 2, 2}};
    plain.trees = {{0, {10, 11}, {-1, 0}}};
    plain.outcomes = {{0, {0}, {12}}};
    branched.number = 2;
    branched.rows = {{0, 6, 5, trace::Form::absorbed, trace::Mask::tree, 5, 5}};
    branched.trees = {
        {0, {12, 13, 14, 15, 16, 17}, {-1, 0, 0, 2, 1, 0}, {0, 1, 3, 2, 1, 1}, {}, {}}};
    branched.outcomes = {{0, {0, 2, 3}, {14, 15, 20}}};
    trace::Step broken = branched;  // files are not trusted
    broken.number = 3;
    broken.trees[0].parents[2] = 4;
    std::string text;
    trace::append_line(text, header);
    for (const trace::Step& step : {plain, branched, broken})
        trace::append_line(text, trace::Event(step));
    const auto trees_in = [&](std::int64_t step) {
        auto reader = trace::Reader::read(std::make_unique<std::istringstream>(text), "run.jsonl");
        return *trees_of(*reader, step);
    };
    EXPECT_EQ(trees_in(1).size(), 1u);
    EXPECT_EQ(trees_in(3).size(), 0u);
    EXPECT_EQ(trees_in(9).size(), 0u);
    const auto best = trees_in(0);
    ASSERT_EQ(best.size(), 1u);
    EXPECT_EQ(best[0].step, 2);
    EXPECT_EQ(best[0].tokens.size(), 5u);  // of six that were asked for, five were verified

    const auto tokenizer =
        text::Tokenizer::load(std::string(test::source_directory()) + "/models/sapling");
    ASSERT_TRUE(tokenizer) << tokenizer.error().message;
    const std::string drawn = draw(best[0], header.settings.drafters, *tokenizer, false);
    std::vector<std::string> lines;
    std::istringstream in(drawn);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    ASSERT_EQ(lines.size(), 6u) << drawn;
    EXPECT_TRUE(lines[0].starts_with("●")) << drawn;
    EXPECT_TRUE(lines[1].starts_with("├─○")) << drawn;
    EXPECT_TRUE(lines[2].starts_with("│ └─○")) << drawn;
    EXPECT_TRUE(lines[3].starts_with("└─●")) << drawn;
    EXPECT_TRUE(lines[3].ends_with("ngram + mtp")) << drawn;
    EXPECT_TRUE(lines[4].starts_with("  └─●")) << drawn;
    EXPECT_TRUE(lines[5].starts_with("2 accepted")) << drawn;
    EXPECT_NE(draw(best[0], header.settings.drafters, *tokenizer, true), drawn);
}

TEST(EngineFigures, PercentilesAreOfTheNearestRank) {
    const std::vector<double> ten = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    EXPECT_EQ(percentile(ten, 0.5), 5);
    EXPECT_EQ(percentile(ten, 0.99), 10);
    EXPECT_EQ(percentile(ten, 0.0), 1);
    EXPECT_EQ(percentile({}, 0.5), 0);
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
}

TEST(LengthRange, IsANumberOrTwo) {
    const auto range = [](const std::string& text) {
        const auto parsed = parse_range("--prompt", text);
        return parsed ? std::to_string(parsed->low) + " to " + std::to_string(parsed->high)
                      : parsed.error().message;
    };
    EXPECT_EQ(range("512"), "512 to 512");
    EXPECT_EQ(range("1-16777216"), "1 to 16777216");
    for (const char* bad : {"", "0", "-5", "9-3", "1-", "-", "1-2-3", "many", "1-16777217", "1.5"})
        EXPECT_EQ(range(bad),
                  "--prompt " + std::string(bad) + ": not a number of tokens, or LOW-HIGH");
}

TEST(Table, IsTheSameInEveryFormat) {
    Table table;
    table.columns = {"name", "count"};
    table.rows = {{"a", "1.5"}, {"b|c", "-"}};
    EXPECT_NE(table.text(TableFormat::json).find("\"count\": 1.5"), std::string::npos)
        << table.text(TableFormat::json);
    EXPECT_EQ(table.text(TableFormat::csv), "name,count\na,1.5\nb|c,-\n");
    EXPECT_EQ(table.text(TableFormat::markdown),
              "| name | count |\n|-----:|------:|\n|    a |   1.5 |\n| b\\|c |     - |\n");
    EXPECT_EQ(table.transposed().columns.size(), 3u);
    EXPECT_FALSE(parse_table_format("xml"));
}

TEST(Csv, QuotesWhatWouldSplitALine) {
    EXPECT_EQ(csv_line({"8 clients off, json_schema", "1.5", ""}),
              "\"8 clients off, json_schema\",1.5,\n");
    EXPECT_EQ(csv_line({"say \"yes\"", "two\nlines", " a "}),
              "\"say \"\"yes\"\"\",\"two\nlines\", a \n");
    Table table;
    table.columns = {"a, b", "c"};
    table.rows = {{"1,2", "3"}};
    EXPECT_EQ(table.text(TableFormat::csv), "\"a, b\",c\n\"1,2\",3\n");
}

TEST(Csv, WhatIsWrittenIsReadBack) {
    std::mt19937 rng(4);
    for (int trial = 0; trial < 2000; ++trial) {
        std::vector<std::string> cells(1 + rng() % 4);
        for (std::string& cell : cells)
            for (auto length = rng() % 5; length > 0; --length) cell += ",\"ab \r"[rng() % 6];
        const std::string line = csv_line(cells);
        ASSERT_EQ(line.back(), '\n');
        EXPECT_EQ(csv_cells(line.substr(0, line.size() - 1)), cells) << line;
    }
    EXPECT_EQ(csv_cells("a,b\r"), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(csv_cells(""), (std::vector<std::string>{""}));
    for (const char* broken : {"\"", "a,\"b", "\"a\"b,c", "\"a\"\"", "\"a\" ,b"})
        EXPECT_FALSE(csv_cells(broken)) << broken;
}

// Readable by numpy: magic, version, a length that is a multiple of 64 in all, a newline at the
// end.
TEST(LogitsFile, BeginsAsNumPyWantsIt) {
    for (const std::int64_t rows : {std::int64_t{0}, std::int64_t{1}, std::int64_t{123456789012}}) {
        const std::string header = npy_header(rows, 129280);
        EXPECT_EQ(header.substr(0, 8), std::string("\x93NUMPY\x01\x00", 8));
        EXPECT_EQ(header.size() % 64, 0u);
        const auto length =
            static_cast<unsigned char>(header[8]) + 256u * static_cast<unsigned char>(header[9]);
        EXPECT_EQ(length + 10u, header.size());
        EXPECT_EQ(header.back(), '\n');
        EXPECT_NE(header.find("'shape': (" + std::to_string(rows) + ", 129280), }"),
                  std::string::npos);
        EXPECT_NE(header.find("'descr': '<f4', 'fortran_order': False"), std::string::npos);
    }
}

}  // namespace
}  // namespace espalier::cli
