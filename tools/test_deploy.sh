#!/usr/bin/env bash
# Holds deploy/ to a server, systemd, promtool and Kubernetes' schema.
#   tools/test_deploy.sh build/cpu/espalier models/sapling
set -euo pipefail
environment=$(tools/python_environment.sh deploy tests/deploy/requirements.txt)
promtool=$environment/bin/promtool
if [ ! -x "$promtool" ]; then
    # Installing Debian's package would start a Prometheus on this machine; its checker is all that is wanted.
    download=$(mktemp -d)
    trap 'rm -rf "$download"' EXIT
    (cd "$download" && apt-get download -qq -o APT::Sandbox::User=root prometheus) || {
        echo "promtool could not be fetched: apt-get download prometheus must work" >&2
        exit 1
    }
    dpkg-deb --extract "$download"/prometheus_*.deb "$download/root"
    mv "$download/root/usr/bin/promtool" "$promtool"
fi
"$environment/bin/python3" tests/deploy/monitoring_test.py "$1" "$2" "$promtool"
"$environment/bin/python3" tests/deploy/service_test.py "$1"
