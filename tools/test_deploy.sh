#!/usr/bin/env bash
# Holds deploy/ to a server, systemd, promtool, HAProxy and Kubernetes' schema.
#   tools/test_deploy.sh build/cpu/espalier models/sapling
set -euo pipefail
environment=$(tools/python_environment.sh deploy tests/deploy/requirements.txt)
# Installing Debian's packages would start a Prometheus and a HAProxy on this machine; their programs are all that is wanted.
# unpacked FOLDER PACKAGE …
unpacked() {
    local folder=$1
    shift
    [ -d "$folder" ] && return 0
    local download
    download=$(mktemp -d)
    (cd "$download" && apt-get download -qq -o APT::Sandbox::User=root "$@") || {
        rm -rf "$download"
        echo "$1 could not be fetched: apt-get download $1 must work" >&2
        exit 1
    }
    rm -rf "$folder.new"
    for package in "$download"/*.deb; do dpkg-deb --extract "$package" "$folder.new"; done
    mv "$folder.new" "$folder"
    rm -rf "$download"
}
unpacked "$environment/prometheus" prometheus
unpacked "$environment/haproxy" haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
promtool=$environment/prometheus/usr/bin/promtool
haproxy=$environment/haproxy
cat > "$environment/bin/haproxy" << END
#!/bin/sh
LD_LIBRARY_PATH=$haproxy/usr/lib/$(uname -m)-linux-gnu exec $haproxy/usr/sbin/haproxy "\$@"
END
chmod +x "$environment/bin/haproxy"
"$environment/bin/python3" tests/deploy/monitoring_test.py "$1" "$2" "$promtool"
"$environment/bin/python3" tests/deploy/service_test.py "$1"
"$environment/bin/python3" tests/deploy/balancer_test.py "$1" "$environment/bin/haproxy"
