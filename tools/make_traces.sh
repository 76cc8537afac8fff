#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes tests/replay/data/: traces of the portable kernels, which the tests replay on every machine. To be run when
# bits change on purpose (products_version, sampling_version), never to make a test green.
#
#   tools/make_traces.sh build/cpu/espalier tests/replay/data
set -euo pipefail
espalier=$(realpath "$1")
out=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export ESPALIER_CPU_VARIANT=portable
"$espalier" make-model --preset tiny-v2 --dtype f32 --out tiny-v2
"$espalier" make-model --preset tiny-v3 --dtype fp8 --seed 7 --out tiny-v3

# Temperature 0.7, and so few pages that requests give way to others.
"$espalier" bench engine tiny-v2 --threads 2 --requests 10 --concurrency 4 --rows 4 --prompt 20-60 --output 80-120 \
    --temperature 0.7 --speculate ngram --pages 7 --max-model-len 320 --trace "$out/tiny_v2_sampled.jsonl"
# Trees on texts that repeat themselves.
"$espalier" bench engine tiny-v2 --threads 2 --requests 8 --concurrency 4 --rows 4 --prompt 8-40 --output 60-120 \
    --speculate ngram:6x3/12 --trace "$out/tiny_v2_trees.jsonl"
# Greedy, FP8 weights.
"$espalier" bench engine tiny-v3 --threads 2 --requests 10 --concurrency 4 --rows 4 --prompt 32-300 --output 24-64 \
    --speculate ngram --trace "$out/tiny_v3_greedy.jsonl"
wc -c "$out"/*.jsonl
