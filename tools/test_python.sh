#!/usr/bin/env bash
# Installs the wheel beside torch, in an environment outside the tree, and runs its tests and its example there.
#   tools/test_python.sh build/cpu/python/espalier-0.3.0-cp310-abi3-linux_x86_64.whl
set -euo pipefail
environment=$(tools/python_environment.sh python tests/python/requirements.txt)
"$environment/bin/pip" install -q --disable-pip-version-check --no-index --no-deps --force-reinstall "$1"
"$environment/bin/python3" tests/python/run.py
"$environment/bin/python3" -W "ignore:Failed to initialize NumPy" examples/python/decode_loop.py
