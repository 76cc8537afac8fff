// SPDX-License-Identifier: Apache-2.0
// What the commands are made of: figures, ranges, tables, the header of a file of logits.
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "cli/engine_figures.hpp"
#include "cli/logits_file.hpp"
#include "cli/terminal.hpp"

namespace espalier::cli {
namespace {

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
    EXPECT_EQ(table.text(TableFormat::csv).substr(0, 11), "name,count\n");
    EXPECT_EQ(table.transposed().columns.size(), 3u);
    EXPECT_FALSE(parse_table_format("xml"));
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
