# SPDX-License-Identifier: Apache-2.0
"""Packs the package and its extension module into a wheel (PEP 427), byte for byte the same from the same files. Standard
library only; `make python` calls it and prints the wheel's path."""

import argparse
import base64
import hashlib
import os
import platform
import zipfile

parser = argparse.ArgumentParser(description=__doc__)
for name in ("version", "package", "module", "licence", "out"):
    parser.add_argument(f"--{name}", required=True)
arguments = parser.parse_args()

tag = f"cp310-abi3-linux_{platform.machine()}"
information = f"espalier-{arguments.version}.dist-info"
metadata = f"""Metadata-Version: 2.1
Name: espalier
Version: {arguments.version}
Summary: Attention for MLA models on torch tensors: ragged rows, paged caches, draft trees
License: Apache-2.0
Requires-Python: >=3.10
"""
wheel = f"""Wheel-Version: 1.0
Generator: espalier make_wheel.py
Root-Is-Purelib: false
Tag: {tag}
"""

files = {}
for name in sorted(os.listdir(arguments.package)):
    if name.endswith((".py", ".pyi")) or name == "py.typed":
        with open(os.path.join(arguments.package, name), "rb") as file:
            files[f"espalier/{name}"] = file.read()
with open(arguments.module, "rb") as file:
    files["espalier/_native.abi3.so"] = file.read()
with open(arguments.licence, "rb") as file:
    files[f"{information}/LICENSE"] = file.read()
files[f"{information}/METADATA"] = metadata.encode()
files[f"{information}/WHEEL"] = wheel.encode()

record = ""
for name, content in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record += f"{name},sha256={digest},{len(content)}\n"
files[f"{information}/RECORD"] = f"{record}{information}/RECORD,,\n".encode()

path = os.path.join(arguments.out, f"espalier-{arguments.version}-{tag}.whl")
with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    for name, content in files.items():
        entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = 0o644 << 16
        archive.writestr(entry, content)
print(path)
