#!/usr/bin/env bash
# Runs every fuzz target of a build folder for some seconds, starting from its committed corpus.
#   tools/fuzz.sh build/fuzz 20
set -euo pipefail
build=$1
seconds=$2
found=0
for target in "$build"/tests/fuzz/fuzz_*; do
    [ -x "$target" ] && [ -f "$target" ] || continue
    found=1
    name=$(basename "$target")
    work=$(mktemp -d)
    echo "fuzz: $name for $seconds s"
    "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -print_final_stats=0 -print_funcs=0 -verbosity=0 \
        -artifact_prefix="$build/" "$work" "tests/fuzz/corpus/$name"
    rm -rf "$work"
done
[ "$found" -eq 1 ] || { echo "fuzz: no targets in $build/tests/fuzz" >&2; exit 1; }
