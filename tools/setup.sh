#!/usr/bin/env bash
# Installs what Espalier needs from Debian 12's own packages, by name, and fetches xgrammar's sources and the page's libraries
# into .cache; does nothing when all is there.
#   tools/setup.sh run    what building and running needs
#   tools/setup.sh test   that, and what the tests, sanitizers and fuzzers need
#   tools/setup.sh gpu    what building and `make gpu-test` need, but nvcc and the driver
#   tools/setup.sh long   that, and the reference tokenizers and validators that the long tests compare with (PyPI, into .venv)
#   tools/setup.sh page   what building needs, and the browser in which `make test-page` opens the server's page
#   tools/setup.sh package | clients | deploy | python   what building needs, and `make package`, `make test-clients`,
#                         `make test-deploy`, `make test-python`
set -euo pipefail

run_packages=(
    g++ cmake ninja-build make git ca-certificates python3-pip
    libfmt-dev libexpected-dev nlohmann-json3-dev libcli11-dev libpcre2-dev libboost1.81-dev libssl-dev libzmq3-dev
)
test_packages=(libgtest-dev ccache clang-14 clang-format-14 libclang-rt-14-dev python3 libopenmpi-dev openmpi-bin)
gpu_packages=(libgtest-dev python3)
page_packages=(chromium fonts-dejavu-core python3)
long_packages=(python3-venv)
package_packages=(dpkg-dev xz-utils)
clients_packages=(python3-venv libzmq5)
python_packages=(python3-dev python3-venv)
deploy_packages=(dpkg-dev python3-venv systemd strace mmdebstrap)
# npm brings the page's libraries: into what is shipped, and where the page is tested.
if ! command -v npm > /dev/null; then
    page_packages+=(npm)
    package_packages+=(npm)
fi

case "${1:-}" in
    run) packages=("${run_packages[@]}") ;;
    test) packages=("${run_packages[@]}" "${test_packages[@]}") ;;
    gpu) packages=("${run_packages[@]}" "${gpu_packages[@]}") ;;
    page) packages=("${run_packages[@]}" "${page_packages[@]}") ;;
    long) packages=("${run_packages[@]}" "${test_packages[@]}" "${long_packages[@]}") ;;
    package) packages=("${run_packages[@]}" "${package_packages[@]}") ;;
    clients) packages=("${run_packages[@]}" "${clients_packages[@]}") ;;
    python) packages=("${run_packages[@]}" "${python_packages[@]}") ;;
    deploy) packages=("${run_packages[@]}" "${deploy_packages[@]}") ;;
    *)
        echo "usage: tools/setup.sh run|test|gpu|long|page|package|clients|deploy|python" >&2
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
    [ -x .venv/bin/python3 ] || python3 -m venv .venv
    .venv/bin/pip install -q --disable-pip-version-check -r tests/requirements.txt
}

# The grammar library (Apache-2.0) as PyPI has it, compiled into the binary by cmake/EspalierGrammar.cmake. Where it cannot be
# reached everything but structured output is built. pip keeps a source archive only once a build backend has told its name:
# xgrammar's backend would fetch compilers and torch for that, so a stand-in of its name answers, and nothing is built.
fetch_xgrammar() {
    local version=0.2.8
    local sha256=8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80
    local name=xgrammar-$version
    [ -d ".cache/$name" ] && return 0

    echo "set-up: fetching $name"
    mkdir -p .cache
    local work
    work=$(mktemp -d "$PWD/.cache/xgrammar.XXXXXX")
    mkdir "$work/scikit_build_core"
    cat > "$work/scikit_build_core/build.py" << END
import pathlib
def prepare_metadata_for_build_wheel(directory, settings=None):
    info = pathlib.Path(directory, "$name.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xgrammar\nVersion: $version\n")
    return info.name
END
    echo "xgrammar==$version --hash=sha256:$sha256" > "$work/requirements.txt"
    if ! PYTHONPATH=$work /usr/bin/python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: \
        --no-build-isolation --require-hashes -d "$work" -r "$work/requirements.txt" > "$work/log" 2>&1; then
        local refused=0
        grep -q "DO NOT MATCH THE HASHES" "$work/log" && refused=1
        tail -3 "$work/log" >&2
        rm -rf "$work"
        if [ "$refused" = 1 ]; then
            echo "set-up: $name is not the archive that was tested (its sha256 is another)" >&2
            exit 1
        fi
        echo "set-up: $name could not be fetched: the build will have no structured output" >&2
        return 0
    fi
    tar -xzf "$work/$name.tar.gz" -C "$work" "$name/"{cpp,include,3rdparty/picojson,3rdparty/dlpack/include,LICENSE,NOTICE}
    mv "$work/$name" ".cache/$name"
    rm -rf "$work"
}

# What reads Markdown in the server's page, embedded by src/server/page/embed.cmake: packages of npm, which a machine may lack.
# Without them the page shows an answer as plain text.
fetch_page_libraries() {
    local packages=(
        "marked 18.2.0 lib/marked.umd.js marked f8f191f70f642128653254bf4b511e7fd7d77962b4c2a186d5f192e47f93d800"
        "dompurify 3.4.18 dist/purify.min.js purify 8b86f79c6481fec23dd81d4de32179422668912ed033c0c47e786a6e70cb3379"
        "@highlightjs/cdn-assets 11.12.0 highlight.min.js highlight b8a006d30f45afe783072569f3d69c5b60c0e7b9ca28cd474e12f2584e2a3bd9"
    )
    local folder=.cache/page-libraries-1 # another number with other packages: a build directory sees that they changed
    [ -d "$folder" ] && return 0

    echo "set-up: fetching the page's libraries"
    mkdir -p .cache
    local work package name version file short sha256
    work=$(mktemp -d "$PWD/.cache/page.XXXXXX")
    mkdir "$work/made"
    for package in "${packages[@]}"; do
        read -r name version file short sha256 <<< "$package"
        if ! (cd "$work" && npm pack "$name@$version" > log 2>&1); then
            tail -3 "$work/log" >&2
            rm -rf "$work"
            echo "set-up: $name $version could not be fetched with npm: the server's page will show Markdown as plain text" >&2
            return 0
        fi
        if ! echo "$sha256  $(echo "$work"/*.tgz)" | sha256sum --check --status; then
            rm -rf "$work"
            echo "set-up: $name $version is not the archive that was tested (its sha256 is another)" >&2
            exit 1
        fi
        tar -xzf "$work"/*.tgz -C "$work" "package/$file"
        mv "$work/package/$file" "$work/made/$short.js"
        rm "$work"/*.tgz
    done
    mv "$work/made" "$folder"
    rm -rf "$work"
}

cd "$(dirname "$0")/.."
install_packages
fetch_xgrammar
fetch_page_libraries
if [ "$1" = long ]; then install_python_packages; fi
