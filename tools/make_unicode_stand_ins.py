#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes src/text/unicode_stand_ins.inc: which code points PCRE2 must not see as they are, and what it sees instead.

The reference libraries (tokenizers with Oniguruma, tiktoken with the Rust regex crate) classify by Unicode 16;
PCRE2 classifies by whatever version it was built with (10.42: Unicode 14). A code point whose general category,
Han membership or white space differs between PCRE2 and the reference, or will differ in a later Unicode (as the
`regex` module knows it), gets a stand-in: a code point of the same UTF-8 length that has had the reference's
classification in every one of those versions, and lies in the same explicit ranges of the published patterns.

Needs: tokenizers, tiktoken, regex, and libpcre2-8 as a shared library.
"""
import argparse
import bisect
import ctypes
import ctypes.util

import regex
import tiktoken
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn".split()
CLASSES = [rf"\p{{{name}}}" for name in CATEGORIES + ["Han"]] + [r"\s"]
# Bounds of the explicit ranges in DeepSeek's published patterns (V2 and V3); a stand-in never crosses one.
RANGES = [(0x800, 0x4E00), (0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF), (0xAC00, 0xD7FF), (0xFF01, 0xFF0F),
          (0xFF1A, 0xFF5E), (0x2018, 0x201F), (0x3000, 0x3002), (0x13A0, 0x13F5), (0x13F8, 0x13FD), (0x1C90, 0x1CBA),
          (0x1CBD, 0x1CBF), (0x1D00, 0x1D2B), (0x1D6B, 0x1D77), (0x1D79, 0x1D9A), (0x1E00, 0x1FFC), (0x2102, 0x2184),
          (0x2C00, 0x2C7B), (0x2C7E, 0x2CE4), (0x2CEB, 0x2CEE), (0x2CF2, 0x2CF3), (0xA640, 0xA66D), (0xA680, 0xA69B),
          (0xA722, 0xA76F), (0xA771, 0xA787), (0xA78B, 0xA78E), (0xAB70, 0xABBF), (0xFB00, 0xFB17), (0x10400, 0x1044F),
          (0x104B0, 0x104D3), (0x104D8, 0x104FB), (0x10C80, 0x10CB2), (0x10CC0, 0x10CF2), (0x118A0, 0x118DF),
          (0x1E900, 0x1E943), (0x10A0, 0x10C5)]
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BLOCK = 4096


def members_by_tokenizers(pattern):
    split = Split(Regex(pattern), "removed")
    found = set()
    for at in range(0, len(CODE_POINTS), BLOCK):
        block = CODE_POINTS[at:at + BLOCK]
        kept = set("".join(piece for piece, _ in split.pre_tokenize_str("".join(map(chr, block)))))
        found.update(c for c in block if chr(c) not in kept)
    return found


def members_by_tiktoken(pattern):
    bytes_only = {bytes([value]): value for value in range(256)}
    encoding = tiktoken.Encoding("bytes", pat_str=pattern, mergeable_ranks=bytes_only, special_tokens={})
    found = set()
    for at in range(0, len(CODE_POINTS), BLOCK):
        text = "".join(map(chr, CODE_POINTS[at:at + BLOCK]))
        found.update(map(ord, bytes(encoding.encode_ordinary(text)).decode()))  # unmatched text gives no token
    return found


def members_by_regex_module(pattern):
    compiled = regex.compile(pattern)
    return {c for c in CODE_POINTS if compiled.match(chr(c))}


class Pcre2:
    UTF, UCP = 0x00080000, 0x00020000

    def __init__(self):
        self.library = ctypes.CDLL(ctypes.util.find_library("pcre2-8"))
        for name in ("pcre2_compile_8", "pcre2_match_data_create_8", "pcre2_get_ovector_pointer_8"):
            getattr(self.library, name).restype = ctypes.c_void_p
        self.library.pcre2_get_ovector_pointer_8.restype = ctypes.POINTER(ctypes.c_size_t)

    def members(self, pattern):
        error, offset = ctypes.c_int(), ctypes.c_size_t()
        raw = pattern.replace("{Han}", "{sc:Han}").encode()  # plain {Han} is Script_Extensions to PCRE2
        code = ctypes.c_void_p(self.library.pcre2_compile_8(raw, ctypes.c_size_t(len(raw)), self.UTF | self.UCP,
                                                            ctypes.byref(error), ctypes.byref(offset), None))
        assert code, (pattern, error.value)
        data = ctypes.c_void_p(self.library.pcre2_match_data_create_8(1, None))
        found = set()
        for c in CODE_POINTS:
            subject = chr(c).encode()
            if self.library.pcre2_match_8(code, subject, ctypes.c_size_t(len(subject)), ctypes.c_size_t(0), 0, data,
                                          None) > 0:
                found.add(c)
        return found


def utf8_length(c):
    return 1 if c < 0x80 else 2 if c < 0x800 else 3 if c < 0x10000 else 4


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="src/text/unicode_stand_ins.inc")
    arguments = parser.parse_args()

    pcre2 = Pcre2()
    reference = {c: [] for c in CODE_POINTS}
    unstable = set()
    for pattern in CLASSES:
        ours = members_by_tokenizers(pattern)
        rust = members_by_tiktoken(pattern)
        assert ours == rust, f"{pattern}: tokenizers and tiktoken differ in {len(ours ^ rust)} code points"
        unstable |= (ours ^ pcre2.members(pattern)) | (ours ^ members_by_regex_module(pattern))
        for c in ours:
            reference[c].append(pattern)

    def kind(c):
        return (tuple(reference[c]), utf8_length(c), tuple(low <= c <= high for low, high in RANGES))

    stable = {}
    for c in CODE_POINTS:
        # Noncharacters are the only unassigned code points that stay unassigned (none has two bytes).
        forever = r"\p{Cn}" not in reference[c] or 0xFDD0 <= c <= 0xFDEF or c & 0xFFFE == 0xFFFE or c < 0x800
        if c not in unstable and forever:
            stable.setdefault(kind(c), []).append(c)

    rows = []
    for c in sorted(unstable):
        wanted = kind(c)
        if wanted not in stable:  # e.g. unassigned inside an explicit range: some unassigned one of that range
            stable[wanted] = [s for s in CODE_POINTS if s not in unstable and kind(s) == wanted]
        choices = stable[wanted]
        assert choices, hex(c)
        at = bisect.bisect(choices, c)
        best = min(choices[max(0, at - 1):at + 1], key=lambda s: abs(s - c))
        if rows and rows[-1][1] == c - 1 and rows[-1][2] == best:
            rows[-1][1] = c
        else:
            rows.append([c, c, best])
    with open(arguments.out, "w") as out:
        out.write("// SPDX-License-Identifier: Apache-2.0\n// Made by tools/make_unicode_stand_ins.py: {first, last, stand-in}, ascending.\n")
        for first, last, best in rows:
            out.write(f"{{0x{first:04X}, 0x{last:04X}, 0x{best:04X}}},\n")
    print(f"{len(unstable)} code points, {len(rows)} rows")


if __name__ == "__main__":
    main()
