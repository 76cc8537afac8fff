#!/usr/bin/env bash
# What `make demo` shows: Sapling, the small model of this repository, inspected and continuing three openings.
#   tools/demo.sh build/cpu/espalier models/sapling
set -euo pipefail
espalier=$1
model=$2
"$espalier" inspect "$model"
for prompt in $'class BankAccount:\n    """An account with a balance that cannot become negative."""\n\n    def __init__(self, owner, balance=0):\n' \
    $'def retry(times, exceptions=(Exception,)):\n    """Decorator that calls a function again when it fails."""\n' \
    $'import csv\n\n\ndef read_rows(path, delimiter=","):\n    """Yield every row of a CSV file as a dictionary."""\n'; do
    printf '\n────────\n'
    "$espalier" generate "$model" -p "$prompt" -n 100 --temperature 0
done
