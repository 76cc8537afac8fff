# SPDX-License-Identifier: Apache-2.0
"""Random weights as a pure function of (tensor name, seed, index); the C++ twin is src/checkpoint/synthetic.cpp."""
import numpy as np

MASK64 = (1 << 64) - 1


def fnv1a64(text):
    value = 0xCBF29CE484222325
    for byte in text.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK64
    return value


def mixed(name, seed, count):
    """64 random bits, uint64 [count]."""
    start = (fnv1a64(name) + (seed + 1) * 0x9E3779B97F4A7C15) & MASK64
    x = np.uint64(start) + np.arange(count, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniform(name, seed, count):
    """u in [0, 1) with 24 bits, float64 [count]."""
    return (mixed(name, seed, count) >> np.uint64(40)).astype(np.float64) * 2.0**-24
