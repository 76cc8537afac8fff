#!/usr/bin/env bash
# What `make demo` shows: Sapling, the small model of this repository, continues openings without and with speculation.
#   tools/demo.sh build/cpu/espalier models/sapling models/sapling-eagle3
set -euo pipefail
"$1" demo "$2" ${3:+--draft "$3"}
printf '\nmake serve, and then http://127.0.0.1:8000/ in a browser: a chat that shows where each token came from, and its trees.\n'
