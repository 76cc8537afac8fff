# SPDX-License-Identifier: Apache-2.0
"""Threads, forks, lifetimes and the package itself."""

import gc
import inspect
import os
import resource
import subprocess
import sys
import threading
import time
import unittest

import problems
import torch
from problems import SCALE, Cache, Problem, assert_close, ints

import espalier
from espalier import _native


class Lifetimes(unittest.TestCase):
    def test_pages_and_rows_keep_what_they_point_into(self):
        cache = Cache("bf16", 16, 30, 0)
        problem = Problem(cache, [(espalier.TREE, 3, 40), (espalier.DENSE, 2, 20)], heads=2)
        expected = problem.expected()
        rows = espalier.Rows(**{name: value.clone() if torch.is_tensor(value) else value for name, value in problem.arguments.items()})
        pages = espalier.Pages(cache.data.clone())
        gc.collect()
        trash = [torch.full((1 << 16,), -1, dtype=torch.int32, device=problems.DEVICE) for _ in range(64)]
        assert_close(self, espalier.absorbed(problem.q, pages, rows, scale=SCALE), expected, "bf16")
        del trash

    def test_lengths_written_in_place_are_seen(self):
        cache = Cache("bf16", 16, 30, 0)
        problem = Problem(cache, [(espalier.CAUSAL, 2, 60)], heads=2)
        rows = problem.make_rows()
        for length in (60, 31, 2):
            problem.arguments["kv_len"].fill_(length)
            problem.rows = [(espalier.CAUSAL, 2, length)]
            assert_close(self, espalier.absorbed(problem.q, cache.pages, rows, scale=SCALE), problem.expected(), "bf16")

    def test_nothing_leaks_where_calls_are_refused(self):
        tensor = lambda: torch.ones(1 << 20, dtype=torch.int32)  # 4 MiB  # noqa: E731

        def refuse() -> None:
            for make in (lambda: espalier.Pages(tensor()), lambda: _native.Plan(tensor()), lambda: espalier.Rows(tensor(), tensor(), tensor(), tensor(), token_end=1, max_q_len=1, max_kv_len=1)):
                try:
                    make()
                except espalier.Error:
                    pass

        for _ in range(4):
            refuse()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(40):
            refuse()
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        self.assertLess(grown, 480_000, "kB; 40 rounds hold 960 MB if they leak")


class Threads(unittest.TestCase):
    def test_calls_from_many_threads(self):
        problem_list = [Problem(Cache("bf16", 64, 20, seed), [(espalier.CAUSAL, 4, 200)], heads=4) for seed in range(4)]
        wanted = [espalier.absorbed(p.q, p.cache.pages, p.make_rows(), scale=SCALE, invariant=True)[0] for p in problem_list]
        wrong = []

        def work(problem, expected):
            for _ in range(20):
                got = espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE, invariant=True)[0]
                if not torch.equal(got, expected):
                    wrong.append(1)

        threads = [threading.Thread(target=work, args=pair) for pair in zip(problem_list, wanted) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class OnTheHost(unittest.TestCase):
    """Of the CPU's thread pool; run.py leaves these out on a GPU."""

    def test_other_threads_run_during_a_call(self):
        """Python's lock is released: another thread gets it in the middle half of a long call."""
        rows = 64
        while True:
            cache = Cache("f32", 128, 64, 1)
            problem = Problem(cache, [(espalier.FULL, rows, 128 * 40)], heads=16)
            times = []

            def work():
                begin = time.monotonic()
                espalier.absorbed(problem.q, cache.pages, made, scale=SCALE)
                times.extend((begin, time.monotonic()))

            made = problem.make_rows()
            ticks = []
            thread = threading.Thread(target=work)
            thread.start()
            while thread.is_alive():
                ticks.append(time.monotonic())
                time.sleep(0.001)
            thread.join()
            begin, end = times
            if end - begin < 0.4:  # too short to tell
                rows *= 4
                continue
            quarter = (end - begin) / 4
            self.assertGreater(len([tick for tick in ticks if begin + quarter < tick < end - quarter]), 2)
            return

    def test_a_fork_has_threads_of_its_own(self):
        problem = Problem(Cache("bf16", 64, 20, 1), [(espalier.CAUSAL, 4, 200)], heads=4)
        rows = problem.make_rows()
        wanted = espalier.absorbed(problem.q, problem.cache.pages, rows, scale=SCALE)[0]
        parents = list(_contexts().values())[-1]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                same = torch.equal(espalier.absorbed(problem.q, problem.cache.pages, rows, scale=SCALE)[0], wanted)
                parents.workspace_bytes(rows, 4)
            except espalier.Error as error:
                code = 0 if same and "in its fork" in str(error) else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_number_of_threads_changes_no_bits(self):
        problem = Problem(Cache("bf16", 64, 20, 1), [(espalier.CAUSAL, 40, 900)], heads=4)
        bits = []
        for threads in (1, 3, 2):
            espalier.set_threads(threads)
            bits.append(espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE)[0])
        self.assertTrue(torch.equal(bits[0], bits[1]) and torch.equal(bits[0], bits[2]))


def _contexts():
    from espalier import attention

    return attention._contexts


class Package(unittest.TestCase):
    def test_importing_it_imports_no_torch(self):
        code = "import sys, espalier; sys.exit('torch' in sys.modules)"
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

    def test_everything_public_is_documented(self):
        for name in espalier.__all__:
            value = getattr(espalier, name)
            if callable(value):
                self.assertTrue(inspect.getdoc(value), name)

    def test_stubs_name_what_the_module_has(self):
        stub = open(os.path.join(os.path.dirname(espalier.__file__), "_native.pyi")).read()
        for name in dir(_native):
            if not name.startswith("__") or name == "__version__":
                self.assertRegex(stub, rf"(?m)^(class |def )?{name}\b")
        for kind in (_native.Context, _native.Pages, _native.Rows, _native.Plan):
            for name in vars(kind):
                if not name.startswith("__"):
                    self.assertIn(f"def {name}(", stub)
