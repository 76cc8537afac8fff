#!/usr/bin/env bash
# Makes a Python environment outside the tree with the packages of a requirements file, and prints its directory.
#   tools/python_environment.sh NAME REQUIREMENTS
set -euo pipefail
directory=${XDG_CACHE_HOME:-$HOME/.cache}/espalier/$1
[ -x "$directory/bin/python3" ] || python3 -m venv "$directory"
"$directory/bin/pip" install -q --disable-pip-version-check -r "$2" >&2 || {
    echo "the packages of $2 could not be installed: PyPI must be reachable, or pip's index-url name a mirror of it" >&2
    exit 1
}
echo "$directory"
