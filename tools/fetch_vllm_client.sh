#!/usr/bin/env bash
# Prints the path of vLLM's own load client (Apache-2.0), one file of its source archive as PyPI has it, fetched into a
# directory outside the tree where it is not there yet.
#   tools/fetch_vllm_client.sh DIRECTORY
# vLLM itself is not installed: it brings gigabytes for GPUs. pip keeps a source archive only once a build backend has told its
# name: vLLM's backend would need torch for that, so a stand-in of its name answers, and nothing is built.
set -euo pipefail
version=0.33.0
sha256=f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112
file=$1/vllm-$version/endpoint_request_func.py
if [ ! -f "$file" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    mkdir "$work/setuptools"
    touch "$work/setuptools/__init__.py"
    cat > "$work/setuptools/build_meta.py" << END
import pathlib
def get_requires_for_build_wheel(settings=None):
    return []
def prepare_metadata_for_build_wheel(directory, settings=None):
    info = pathlib.Path(directory, "vllm-$version.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: $version\n")
    return info.name
END
    echo "vllm==$version --hash=sha256:$sha256" > "$work/requirements.txt"
    PYTHONPATH=$work python3 -m pip download -q --disable-pip-version-check --no-deps --no-binary :all: --no-build-isolation \
        --require-hashes -d "$work" -r "$work/requirements.txt" > "$work/log" 2>&1 || {
        tail -3 "$work/log" >&2
        echo "vLLM's source archive could not be fetched: PyPI must be reachable, or pip's index-url name a mirror of it" >&2
        exit 1
    }
    tar -xzf "$work/vllm-$version.tar.gz" -C "$work" "vllm-$version/vllm/benchmarks/lib/endpoint_request_func.py"
    mkdir -p "$1/vllm-$version"
    mv "$work/vllm-$version/vllm/benchmarks/lib/endpoint_request_func.py" "$file"
fi
echo "$file"
