# SPDX-License-Identifier: Apache-2.0
"""What only a GPU has: streams and graphs. run.py --device cuda runs it."""

import unittest

import problems
import torch
from problems import SCALE, Cache, Problem, assert_close, ints
from restatement import attend, causal, slots_of

import espalier


class Streams(unittest.TestCase):
    def test_the_current_stream_is_taken(self):
        """The side stream is busy for long before it copies the queries: a call on any other stream would read zeros."""
        cache = Cache("bf16", 64, 20, 1)
        problem = Problem(cache, [(espalier.CAUSAL, 4, 500)], heads=16)
        rows, late = problem.make_rows(), torch.zeros_like(problem.q)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            espalier.absorbed(late, cache.pages, rows, scale=SCALE)  # torch's allocator has the memory from here on
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000_000)  # half a second
            late.copy_(problem.q)
            got = espalier.absorbed(late, cache.pages, rows, scale=SCALE)
        self.assertFalse(side.query(), "calls do not wait for the GPU")
        side.synchronize()
        assert_close(self, got, problem.expected(), "bf16")


class Graphs(unittest.TestCase):
    def expected(self, cache, q, table, lengths):
        numbers = cache.numbers()
        parts = []
        for b, length in enumerate(lengths):
            keys = numbers[slots_of(table[b], length, 64)]
            parts.append(attend(q[b].cpu(), keys, keys[:, :512], causal(q.shape[1], length), SCALE))
        return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts])

    def test_drop_in_replayed_with_other_lengths(self):
        for invariant in (False, True):
            with self.subTest(invariant=invariant):
                cache = Cache("bf16", 64, 100, 2)
                table = cache.table([1000, 1000, 1000])
                seq_lens, q = ints([100, 7, 1000]), cache.queries(3, 2, 16, 576)
                k_cache = cache.data.unsqueeze(2)

                def step():
                    metadata = espalier.get_mla_metadata()[0]
                    return [
                        espalier.flash_mla_with_kvcache(q, k_cache, table, seq_lens, 512, metadata, causal=True, invariant=invariant)
                        for _ in range(3)  # layers
                    ]

                step()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    layers = step()
                for lengths in ([100, 7, 1000], [2, 999, 64], [512, 513, 1]):
                    seq_lens.copy_(ints(lengths))
                    q.normal_()
                    graph.replay()
                    for out, lse in layers:
                        assert_close(self, (out, lse.transpose(1, 2)), self.expected(cache, q, table, lengths), "bf16")

    def test_every_call_in_one_graph(self):
        cache = Cache("bf16", 64, 60, 3)
        problem = Problem(cache, [(espalier.TREE, 8, 200), (espalier.DENSE, 2, 90), (espalier.CAUSAL, 3, 400)], heads=16)
        rows, plan = problem.make_rows(), espalier.Plan()
        latent, rope = torch.randn(2, 512, device="cuda"), torch.randn(2, 64, device="cuda")
        slot = slots_of(problem.table[2], 400, 64)[[5, 300]].cuda()
        source, target = slot[:1].clone(), slots_of(problem.table[0], 200, 64)[[9]].cuda()

        def step():
            espalier.append(cache.pages, latent, rope, slot)
            espalier.compact(cache.pages, source, target)
            return [espalier.absorbed(problem.q, cache.pages, rows, scale=SCALE, plan=plan) for _ in range(2)]

        step()
        torch.cuda.synchronize()
        plan.reset()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step()
        for _ in range(2):
            latent.normal_()
            problem.q.normal_()
            graph.replay()
            for result in results:
                assert_close(self, result, problem.expected(), "bf16")

    def test_a_first_call_may_be_captured(self):
        """In a process that has made no call yet."""
        import subprocess
        import sys

        code = """
import torch, espalier
q = torch.randn(2, 1, 16, 576, device="cuda").bfloat16()
cache = torch.randn(8, 64, 1, 576, device="cuda").bfloat16()
table = torch.arange(8, dtype=torch.int32, device="cuda").view(2, 4)
lengths = torch.tensor([200, 9], dtype=torch.int32, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out, lse = espalier.flash_mla_with_kvcache(q, cache, table, lengths, 512, espalier.get_mla_metadata()[0])
graph.replay()
plain, _ = espalier.flash_mla_with_kvcache(q, cache, table, lengths, 512, espalier.get_mla_metadata()[0])
assert torch.equal(out, plain)
"""
        self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

    def test_tensors_of_the_other_device_are_refused(self):
        problem = Problem(Cache("bf16", 64, 20, 1), [(espalier.CAUSAL, 4, 200)], heads=4)
        with self.assertRaisesRegex(espalier.Error, "on cuda:0 in a call on cpu"):
            espalier.absorbed(problem.q.cpu(), problem.cache.pages, problem.make_rows(), scale=SCALE)
        with self.assertRaisesRegex(espalier.Error, "kv_len is int32 .1. on cpu, wanted is int32 .any. on cuda:0"):
            espalier.Rows(**dict(problem.arguments, kv_len=problem.arguments["kv_len"].cpu()))
        with self.assertRaisesRegex(espalier.Error, "out is float32 .* on cpu"):
            espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE, out=torch.zeros(4, 4, 512))
