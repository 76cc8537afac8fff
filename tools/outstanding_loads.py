#!/usr/bin/env python3
"""Lists loads from shared memory that may still be on their way when their warp arrives at a barrier.

    outstanding_loads.py $(find build/cuda/src/linalg -name '*.cu.o')

An arrival that gives a stage back to bulk copies does not wait for loads in front of it: one whose value is used only later
can read what the copies bring (docs/lab/products.md, "A load that came too late"). Neither memcheck nor racecheck sees it.
This follows the scoreboards of Hopper's machine code through every path of every kernel. Loads of anything but a stage (an
expert's tile, say) are named, too: what a load reads is for the reader to judge. Needs cuobjdump and nvdisasm of the toolkit.
"""

import collections
import re
import subprocess
import sys

Instruction = collections.namedtuple("Instruction", "address text high")

FIRST_WORD = re.compile(r"\s*/\*([0-9a-f]{4,6})\*/\s+(.*?);\s*/\* 0x[0-9a-f]{16} \*/")
SECOND_WORD = re.compile(r"\s*/\* 0x([0-9a-f]{16}) \*/")
GUARD = re.compile(r"@!?U?P\w+\s+")


def kernels(path):
    """(name, instructions) of every kernel of an object."""
    text = subprocess.run(["cuobjdump", "-sass", path], capture_output=True, text=True, check=True).stdout
    for part in re.split(r"\s+Function : ", text)[1:]:
        instructions, first = [], None
        for line in part.split("\n"):
            if match := FIRST_WORD.match(line):
                first = match
            elif first and (match := SECOND_WORD.match(line)):
                instructions.append(Instruction(int(first[1], 16), " ".join(first[2].split()), int(match[1], 16)))
                first = None
        yield part.split()[0], instructions


def written_scoreboard(instruction):
    """Which of six says that the result is there; 7: none."""
    return instruction.high >> 46 & 7


def awaited_scoreboards(instruction):
    awaited = {i for i in range(6) if instruction.high >> (52 + i) & 1}
    if match := re.match(r"DEPBAR\.LE SB(\d), 0x0", operation(instruction)):
        awaited.add(int(match[1]))
    return awaited


def operation(instruction):
    return GUARD.sub("", instruction.text)


def successors(instructions):
    place = {instruction.address: i for i, instruction in enumerate(instructions)}
    for i, instruction in enumerate(instructions):
        what, following = operation(instruction), [i + 1] if i + 1 < len(instructions) else []
        guarded = instruction.text.startswith("@")
        if what.startswith(("EXIT", "RET")):
            yield following if guarded else []
        elif what.startswith(("BRA", "CALL", "WARPSYNC.COLLECTIVE")):
            target = re.search(r"0x([0-9a-f]+)$", what)
            jumps = [place[int(target[1], 16)]] if target and int(target[1], 16) in place else []
            conditional = guarded or not re.match(r"BRA 0x", what)
            yield jumps + (following if conditional else [])
        else:
            yield following


def outstanding_at_arrivals(instructions):
    """arrival → loads that may be outstanding there, by their indices."""
    following = list(successors(instructions))
    before = [None] * len(instructions)
    before[0] = frozenset()
    found, to_visit = collections.defaultdict(set), [0]
    while to_visit:
        i = to_visit.pop()
        instruction = instructions[i]
        awaited = awaited_scoreboards(instruction)
        loads = frozenset(load for load in before[i] if load[0] not in awaited)
        if operation(instruction).startswith("MEMBAR"):  # of the fence that says so
            loads = frozenset()
        if operation(instruction).startswith("SYNCS.ARRIVE"):
            found[i].update(load for _, load in loads)
        if operation(instruction).startswith("LDS") and written_scoreboard(instruction) != 7:
            loads |= {(written_scoreboard(instruction), i)}
        for j in following[i]:
            joined = loads if before[j] is None else before[j] | loads
            if joined != before[j]:
                before[j] = joined
                to_visit.append(j)
    return found


def main(paths):
    for path in paths:
        for name, instructions in kernels(path):
            for arrival, loads in sorted(outstanding_at_arrivals(instructions).items()):
                for load in sorted(loads):
                    print(f"{name}: {instructions[load].text} at {instructions[load].address:#x}, "
                          f"{arrival - load} instructions before {instructions[arrival].text}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
