#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Loads and stores of device code whose address is a constant: of nothing that a GPU has.

constant_addresses.py BUILD [NAME ...]     compiles each CUDA source of BUILD (whose file name has one of NAME) to PTX,
                                           for each architecture that the build names, and reads it

A constant of the host that device code takes by reference (a static constexpr member, say) has no address there: nvcc
compiles the access as one of address 0 without a word. A machine without a GPU sees that in PTX alone. Exits with 1 if there is one.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

DEFINITION = re.compile(r"^\s*(?:@!?%p\d+\s+)?[a-z][\w.:]*\s+\{?(%rd\d+)")
CONSTANT = re.compile(r"^\s*mov\.[ub]64\s+(%rd\d+), \d+;")
ACCESS = re.compile(r"^\s*(?:@!?%p\d+\s+)?(?:ld|st|atom|red)\.(?!param|shared|local)\S*\s.*\[(%rd\d+|\d+)(?:\+-?\d+)?\]")


def faults(ptx):
    """(kernel, instruction) of each access of a constant address."""
    found = []
    for function in re.split(r"^(?=\S*\s*\.(?:entry|func))", ptx, flags=re.MULTILINE)[1:]:
        lines = function.splitlines()
        name = re.search(r"\.(?:entry|func)\s*(?:\([^)]*\)\s*)?(\S+)", lines[0])
        written = {}
        for line in lines:
            if defined := DEFINITION.match(line):
                written.setdefault(defined[1], []).append(CONSTANT.match(line) is not None)
        constants = {register for register, how in written.items() if all(how)}
        for line in lines:
            access = ACCESS.match(line)
            if access and (access[1].isdigit() or access[1] in constants):
                found.append((name[1] if name else "?", line.strip()))
    return found


def architectures(entry):
    """Instructions that the build makes of the source: compute_80, compute_90a."""
    return sorted(set(re.findall(r"arch=(compute_\w+)", entry["command"])))


def to_ptx(entry, architecture, folder):
    """The source's PTX, as the build compiles it."""
    command = re.sub(r"^.*?(\S*nvcc)\b", r"\1", entry["command"], count=1)
    command = re.sub(r" -o \S+| --generate-code=\S+", "", command).replace(" -c ", f" -ptx -arch={architecture} ")
    out = os.path.join(folder, f"{re.sub(r'[^0-9A-Za-z]', '_', entry['file'])}.{architecture}.ptx")
    subprocess.run(f"{command} -o {out}", shell=True, cwd=entry["directory"], check=True)
    return pathlib.Path(out).read_text(encoding="utf-8")


def main():
    entries = json.loads(pathlib.Path(sys.argv[1], "compile_commands.json").read_text(encoding="utf-8"))
    wanted = [
        entry for entry in entries
        if entry["file"].endswith(".cu") and "/src/" in entry["file"]
        and (len(sys.argv) < 3 or any(name in os.path.basename(entry["file"]) for name in sys.argv[2:]))
    ]
    jobs = [(entry, architecture) for entry in wanted for architecture in architectures(entry)]
    failed = 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for (entry, architecture), found in zip(jobs, pool.map(lambda job: faults(to_ptx(*job, folder)), jobs)):
            failed += len(found)
            for kernel, line in found[:3]:
                print(f"{entry['file']} ({architecture}): {kernel}: {line}")
            if len(found) > 3:
                print(f"{entry['file']} ({architecture}): {len(found) - 3} more")
    print(f"{len(wanted)} CUDA sources, {len(jobs)} times PTX, {failed} accesses of constant addresses")
    return 1 if failed or not jobs else 0


if __name__ == "__main__":
    sys.exit(main())
