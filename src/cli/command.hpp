// SPDX-License-Identifier: Apache-2.0
// One file per sub-command: each declares its flags once, here through CLI11, and runs. Errors
// travel as values to main(), which prints them and exits with 1; a wrong command line exits
// with 2.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "base/error.hpp"

namespace espalier::cli {

using Run = std::function<Expected<void>()>;

// Adds the sub-command to the app; its Run is called after parsing if it was chosen.
Run add_generate(CLI::App& app);
Run add_inspect(CLI::App& app);
Run add_tokenize(CLI::App& app);
Run add_make_model(CLI::App& app);
Run add_selftest(CLI::App& app);
Run add_bench(CLI::App& app);
Run add_replay(CLI::App& app);
Run add_serve(CLI::App& app);
Run add_demo(CLI::App& app);
Run add_chat(CLI::App& app);
Run add_pull(CLI::App& app);
Run add_quantize(CLI::App& app);
Run add_convert(CLI::App& app);
Run add_pack(CLI::App& app);
Run add_eval(CLI::App& app);
Run add_follow_rank(CLI::App& app);
// Sub-commands of selftest.
Run add_selftest_lossless(CLI::App& selftest);
Run add_selftest_model(CLI::App& selftest);
// Sub-commands of bench.
Run add_bench_model(CLI::App& bench);
Run add_bench_mla(CLI::App& bench);
Run add_bench_engine(CLI::App& bench);
Run add_bench_serve(CLI::App& bench);

}  // namespace espalier::cli
