#!/usr/bin/env bash
# Clients that others wrote against a server: the official ones of OpenAI for Python (PyPI) and JavaScript (npm) and of Anthropic
# for Python, frameworks over them, and vLLM's load client.
#   tools/test_clients.sh build/cpu/espalier models/sapling
# They are pinned in tests/clients and installed outside the tree; node comes from PyPI, as the client wants one that is
# newer than Debian's.
set -euo pipefail
environment=$(tools/python_environment.sh clients tests/clients/requirements.txt)
agents=$(tools/python_environment.sh agents tests/clients/requirements-agents.txt)
load_client=$(tools/fetch_vllm_client.sh "$agents")
modules=$environment/modules
# node trusts certificates of its own list; the machine's count too.
export NODE_EXTRA_CA_CERTS=${NODE_EXTRA_CA_CERTS:-/etc/ssl/certs/ca-certificates.crt}
if ! cmp -s tests/clients/package-lock.json "$modules/package-lock.json"; then
    rm -rf "$modules" "$modules.new"
    mkdir -p "$modules.new"
    cp tests/clients/package.json tests/clients/package-lock.json "$modules.new"
    PATH=$environment/bin:$PATH npm ci --prefix "$modules.new" --no-audit --no-fund --ignore-scripts --loglevel=error || {
        echo "the client for JavaScript could not be installed: npm's registry must be reachable" >&2
        exit 1
    }
    mv "$modules.new" "$modules"
fi
"$environment/bin/python3" tests/clients/openai_client_test.py "$1" "$2"
"$environment/bin/python3" tests/clients/openai_responses_test.py "$1" "$2"
"$environment/bin/python3" tests/clients/anthropic_client_test.py "$1" "$2"
"$environment/bin/python3" tests/clients/kv_events_test.py "$1" "$2"
"$environment/bin/node" tests/clients/openai_client_test.mjs "$1" "$2" "$modules"
"$agents/bin/python3" tests/clients/agents_test.py "$1" "$2"
"$agents/bin/python3" tests/clients/load_client_test.py "$1" "$2" "$load_client"
