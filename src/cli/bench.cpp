// SPDX-License-Identifier: Apache-2.0
// espalier bench: hands over to what is to be measured.
#include <string>
#include <utility>
#include <vector>

#include "cli/command.hpp"

namespace espalier::cli {

Run add_bench(CLI::App& app) {
    CLI::App* bench = app.add_subcommand("bench", "Measure speed");
    bench->require_subcommand(1);
    std::vector<std::pair<std::string, Run>> runs = {{"model", add_bench_model(*bench)},
                                                     {"mla", add_bench_mla(*bench)},
                                                     {"engine", add_bench_engine(*bench)}};
#ifdef ESPALIER_SERVER
    runs.emplace_back("serve", add_bench_serve(*bench));
#endif
    return [bench, runs]() -> Expected<void> {
        for (const auto& [name, run] : runs)
            if (bench->got_subcommand(name)) return run();
        return {};
    };
}

}  // namespace espalier::cli
