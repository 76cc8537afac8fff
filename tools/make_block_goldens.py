#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/base/data/blocks.bin: random blocks of each GGUF format and the numbers that the package `gguf` of
llama.cpp's authors gives for them (gguf 0.19.0, numpy 2.4.6). Random bytes reach every code and scale; the f16 factors
are kept finite.

A record: u8 length and the format's name, u32 number of blocks, u32 numbers in all, the blocks, the numbers as f32.
"""
import pathlib
import struct

import gguf
import numpy as np
from gguf import quants

FORMATS = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "IQ4_NL": [0], "IQ4_XS": [0], "Q6_K": [208],
           "Q4_K": [0, 2], "Q5_K": [0, 2]}


def main():
    out = bytearray()
    random = np.random.default_rng(35)
    for name, factors in FORMATS.items():
        kind = gguf.GGMLQuantizationType[name]
        weights, size = gguf.GGML_QUANT_SIZES[kind]
        count = 1024 // weights
        blocks = random.integers(0, 256, (count, size), dtype=np.uint8)
        for at in factors:
            factor = (random.standard_normal(count) * 2.0 ** random.integers(-20, 4, count)).astype(np.float16)
            blocks[:, at : at + 2] = factor.view(np.uint8).reshape(count, 2)
        numbers = quants.dequantize(blocks, kind).astype(np.float32).reshape(-1)
        out += bytes([len(name)]) + name.encode() + struct.pack("<II", count, numbers.size)
        out += blocks.tobytes() + numbers.tobytes()
    path = pathlib.Path(__file__).parent.parent / "tests/base/data/blocks.bin"
    path.write_bytes(out)


if __name__ == "__main__":
    main()
