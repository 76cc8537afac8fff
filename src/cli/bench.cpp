// SPDX-License-Identifier: Apache-2.0
// espalier bench: hands over to what is to be measured.
#include "cli/command.hpp"

namespace espalier::cli {

Run add_bench(CLI::App& app) {
    CLI::App* bench = app.add_subcommand("bench", "Measure speed");
    bench->require_subcommand(1);
    const Run model = add_bench_model(*bench);
    const Run mla = add_bench_mla(*bench);
    const Run engine = add_bench_engine(*bench);
    const Run serve = add_bench_serve(*bench);
    return [bench, model, mla, engine, serve] {
        if (bench->got_subcommand("engine")) return engine();
        if (bench->got_subcommand("serve")) return serve();
        return bench->got_subcommand("mla") ? mla() : model();
    };
}

}  // namespace espalier::cli
