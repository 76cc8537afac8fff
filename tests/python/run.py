# SPDX-License-Identifier: Apache-2.0
"""The Python package's tests, on the CPU or on a GPU. Needs torch and the package, nothing else.
    python3 tests/python/run.py [--device cuda] [NAME …]
"""

import argparse
import os
import sys
import unittest
import warnings

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # which nothing here needs
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import problems  # noqa: E402

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
parser.add_argument("names", nargs="*", help="test_refusals.OfRows, say; all if not given")
arguments = parser.parse_args()
problems.DEVICE = arguments.device

MODULES = ["test_attention", "test_flash_mla", "test_refusals", "test_process"]
names = arguments.names or MODULES + (["test_cuda"] if arguments.device == "cuda" else [])


def chosen(suite: unittest.TestSuite) -> unittest.TestSuite:
    """Without the classes that are about the host alone, on a GPU."""
    kept = unittest.TestSuite()
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            kept.addTest(chosen(test))
        elif arguments.device == "cpu" or type(test).__name__ != "OnTheHost":
            kept.addTest(test)
    return kept


suite = chosen(unittest.defaultTestLoader.loadTestsFromNames(names))
sys.exit(not unittest.TextTestRunner(verbosity=1).run(suite).wasSuccessful())
