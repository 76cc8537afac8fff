#!/usr/bin/env bash
# Writes espalier(1) from the binary's own help texts.
#   tools/make_man_page.sh build/cpu/espalier > espalier.1
set -euo pipefail
espalier=$1
# A help text as it is: no line of it is a request to roff, and no hyphen becomes another sign.
verbatim() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"; }
commands() { "$espalier" "$@" --help | sed -n '/^Options:/,$s/^  \([a-z][a-z-]*\)  .*/\1/p'; }
section() {
    printf '.SH "%s"\n.nf\n' "$(printf 'espalier %s' "$*" | tr '[:lower:]' '[:upper:]')"
    "$espalier" "$@" --help | verbatim
    printf '.fi\n'
    local command
    for command in $(commands "$@"); do section "$@" "$command"; done
}
cat << HEAD
.TH ESPALIER 1 "" "$("$espalier" --version)" "User Commands"
.SH NAME
espalier \\- runs MLA models with speculative trees, and serves them
.SH SYNOPSIS
.B espalier
.I COMMAND
.RI [ OPTION ]...
.SH DESCRIPTION
MODEL is a directory that holds a checkpoint as published (DeepSeek\\-V2, V3, R1, Kimi K2), or ORG/NAME in the local hub
cache (HF_HUB_CACHE, HF_HOME). A wrong command line exits with 2, any other failure with 1 and a sentence that says why.
HEAD
section
cat << 'TAIL'
.SH ENVIRONMENT
.TP
.B ESPALIER_...
Every flag of serve, as ESPALIER_MAX_MODEL_LEN for \-\-max\-model\-len.
.TP
.B ESPALIER_CPU_VARIANT
portable, avx2, avx512 or avx512_bf16: kernels below this machine's best.
.TP
.B OMP_NUM_THREADS
The default of \-\-threads.
.SH FILES
.TP
.I /etc/espalier/serve.conf
Settings of espalier.service.
.TP
.I /etc/default/espalier
Its environment, keys included.
TAIL
