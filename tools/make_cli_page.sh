#!/usr/bin/env bash
# Writes docs/cli.md from the binary's own help texts.
#   tools/make_cli_page.sh build/cpu/espalier > docs/cli.md
set -euo pipefail
espalier=$1
cat << 'HEAD'
# The command line

Every flag, as the binary prints it (`tools/make_cli_page.sh` writes this page, a test holds it to `--help`). `MODEL` is a
directory, a GGUF file or `ORG/NAME` in the hub cache (`HF_HUB_CACHE`, `HF_HOME`), into which `pull`, `serve` and `chat` fetch. `ESPALIER_CPU_VARIANT` (portable, avx2,
avx512, avx512_bf16) chooses kernels below this machine's best; `OMP_NUM_THREADS` is the default of `--threads`. A wrong
command line exits with 2, any other failure with 1 and a sentence that says what to do.
HEAD
for command in "" generate inspect tokenize make-model selftest "selftest lossless" bench "bench model" "bench engine" "bench mla" "bench serve" replay quantize pack eval serve chat pull demo; do
    printf '\n## espalier %s\n\n```\n' "$command"
    # shellcheck disable=SC2086
    "$espalier" $command --help
    printf '```\n'
done
