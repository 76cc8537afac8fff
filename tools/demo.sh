#!/usr/bin/env bash
# What `make demo` shows: Sapling, the small model of this repository, continues openings without and with speculation.
#   tools/demo.sh build/cpu/espalier models/sapling models/sapling-eagle3
set -euo pipefail
"$1" demo "$2" ${3:+--draft "$3"}
