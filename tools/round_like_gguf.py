#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Rounds a model as GGUF's Q8_0 or Q4_0 do, into files that our engine reads exactly, so that both roundings can be
compared on the same arithmetic: `espalier eval OUT --text FILE --against MODEL`.

  tools/round_like_gguf.py MODEL QUANTIZED OUT q8_0|q4_0

MODEL has BF16 or FP8 weights; QUANTIZED is what `espalier quantize MODEL QUANTIZED --weights int8|int4` wrote, whose
layout (and choice of matrices) OUT keeps: codes and scales are made anew, the scales as F16. Restated from ggml
(quantize_row_q8_0_ref, quantize_row_q4_0_ref): blocks of 32 inputs; Q8_0 has d = max|x| / 127, Q4_0 d = x / -8 with the x
of the largest magnitude; codes are rounded by the unrounded d, which is stored as F16.
"""
import json
import pathlib
import shutil
import struct
import sys

import numpy as np

BLOCK = 32


def e4m3_table():
    values = np.zeros(256, np.float32)
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        magnitude = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
        values[code] = -magnitude if code & 128 else magnitude
    return values


def read(path):
    """Tensors of a safetensors file: name -> (dtype, shape, bytes)."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, base = json.loads(data[8 : 8 + length]), 8 + length
    return {
        name: (entry["dtype"], entry["shape"], data[base + entry["data_offsets"][0] : base + entry["data_offsets"][1]])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def write(path, tensors):
    header, offset = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            out.write(data)


def matrix(tensors, name):
    """A weight as float32 [n, k]."""
    dtype, (n, k), data = tensors[name + ".weight"]
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(n, k)
    assert dtype == "F8_E4M3", (name, dtype)
    scales = np.frombuffer(tensors[name + ".weight_scale_inv"][2], np.float32)
    scales = scales.reshape(-(-n // 128), -(-k // 128)).repeat(128, 0)[:n].repeat(128, 1)[:, :k]
    return e4m3_table()[np.frombuffer(data, np.uint8)].reshape(n, k) * scales


def rounded(weights, kind):
    """Codes [n, k] and scales [n, k / 32] as ggml makes them."""
    n, k = weights.shape
    blocks = weights.reshape(n, k // BLOCK, BLOCK)
    at = np.abs(blocks).argmax(-1)[..., None]
    extreme = np.take_along_axis(blocks, at, -1)
    scale = np.abs(extreme) / np.float32(127) if kind == "q8_0" else extreme / np.float32(-8)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)
    if kind == "q8_0":
        product = blocks * inverse
        codes = (np.sign(product) * np.floor(np.abs(product) + np.float32(0.5))).astype(np.int8)
    else:
        codes = np.minimum((blocks * inverse + np.float32(8.5)).astype(np.int8), 15)
    return codes.reshape(n, k), scale[..., 0].astype(np.float16)


def packed(codes):
    """Eight 4-bit codes to a word, the first lowest."""
    words = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for i in range(8):
        words |= codes[:, i::8].astype(np.uint32) << np.uint32(4 * i)
    return words


def main(model, quantized, out, kind):
    source = {}
    for path in sorted(pathlib.Path(model).glob("*.safetensors")):
        source.update(read(path))
    out = pathlib.Path(out)
    out.mkdir()
    for path in sorted(pathlib.Path(quantized).iterdir()):
        if path.suffix == ".espalier":
            continue
        if path.suffix != ".safetensors":
            shutil.copy(path, out / path.name)
            continue
        tensors = read(path)
        for name in [name[: -len(".weight_scale")] for name in tensors if name.endswith(".weight_scale")]:
            codes, scales = rounded(matrix(source, name), kind)
            codes_name = name + (".weight" if kind == "q8_0" else ".weight_packed")
            data = codes if kind == "q8_0" else packed(codes)
            assert data.nbytes == len(tensors[codes_name][2]), codes_name
            tensors[codes_name] = (*tensors[codes_name][:2], data.tobytes())
            tensors[name + ".weight_scale"] = ("F16", tensors[name + ".weight_scale"][1], scales.tobytes())
        write(out / path.name, tensors)


if __name__ == "__main__":
    if len(sys.argv) != 5 or sys.argv[4] not in ("q8_0", "q4_0"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
