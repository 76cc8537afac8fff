# SPDX-License-Identifier: Apache-2.0
"""The calls of mla.h on tensors, held to the restatement in torch."""

import itertools
import unittest

import problems
import torch
from problems import SCALE, Cache, Problem, assert_close, formats, ints
from restatement import attend, causal, slots_of

import espalier

MIXED = [
    (espalier.CAUSAL, 1, 65),
    (espalier.TREE, 7, 130),
    (espalier.FULL, 3, 64),
    (espalier.DENSE, 4, 77),
    (espalier.CAUSAL, 0, 12),  # no tokens
    (espalier.CAUSAL, 5, 3),  # more tokens than slots: the first see nothing
    (espalier.TREE, 64, 201),
    (espalier.FULL, 2, 0),  # no slots
    (espalier.TREE, 3, 2),
    (espalier.DENSE, 1, 1),
    (espalier.CAUSAL, 70, 300),
]


class Absorbed(unittest.TestCase):
    def test_every_mask_format_and_page_size(self):
        for seed, (format, page_tokens) in enumerate(itertools.product(formats(), (16, 32, 64, 128))):
            with self.subTest(format=format, page_tokens=page_tokens):
                problem = Problem(Cache(format, page_tokens, 80, seed), MIXED, heads=3, padding=4)
                got = espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE)
                self.assertEqual(got[0].dtype, problem.q.dtype)
                self.assertEqual(tuple(got[0].shape), (problem.token_end, 3, 512))
                assert_close(self, got, problem.expected(), format)

    def test_heads_and_output_types(self):
        for heads, dtype in itertools.product((1, 16, 128), (torch.float32, torch.float16, torch.bfloat16)):
            with self.subTest(heads=heads, dtype=dtype):
                problem = Problem(Cache("bf16", 64, 8, heads), [(espalier.CAUSAL, 2, 100)], heads)
                out = torch.full((2, heads, 512), 7.0, dtype=dtype, device=problems.DEVICE)
                got = espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE, out=out)
                self.assertIs(got[0], out)
                assert_close(self, got, problem.expected(), "bf16")

    def test_invariant_form_plan_and_multiprocessors(self):
        for format in formats():
            with self.subTest(format=format):
                problem = Problem(Cache(format, 64, 40, 5), MIXED, heads=16)
                rows, pages = problem.make_rows(), problem.cache.pages
                plan = espalier.Plan()
                options = dict(scale=SCALE, invariant=True)
                got = espalier.absorbed(problem.q, pages, rows, **options)
                assert_close(self, got, problem.expected(), format)
                for _ in range(2):  # the first call makes the plan, the second brings it
                    again = espalier.absorbed(problem.q, pages, rows, plan=plan, **options)
                    self.assertTrue(torch.equal(again[0], got[0]) and torch.equal(again[1], got[1]))
                few = espalier.absorbed(problem.q, pages, rows, multiprocessors=7, **options)
                self.assertTrue(torch.equal(few[0], got[0]) and torch.equal(few[1], got[1]))

    def test_a_chain_tree_has_the_bits_of_a_causal_row(self):
        cache = Cache("bf16", 64, 8, 9)
        chain = Problem(cache, [(espalier.TREE, 8, 90)], heads=16)
        chain.arguments["words"] = ints([(2 << token) - 1 for token in range(8)], torch.int64)
        chain.arguments["tail_len"] = ints([8])
        tree_bits = espalier.absorbed(chain.q, cache.pages, chain.make_rows(), scale=SCALE, invariant=True)
        chain.arguments["mask"] = ints([espalier.CAUSAL], torch.uint8)
        causal_bits = espalier.absorbed(chain.q, cache.pages, chain.make_rows(), scale=SCALE, invariant=True)
        self.assertTrue(torch.equal(tree_bits[0], causal_bits[0]) and torch.equal(tree_bits[1], causal_bits[1]))

    def test_block_tables_elsewhere(self):
        problem = Problem(Cache("bf16", 16, 40, 3), [(espalier.CAUSAL, 2, 40), (espalier.CAUSAL, 1, 90)], heads=2)
        expected = problem.expected()
        tables = torch.full((4, problem.table.shape[1]), 10**9, dtype=torch.int32, device=problems.DEVICE)
        tables[3], tables[1] = problem.table[0], problem.table[1]
        problem.arguments.update(block_table=tables, table_row=ints([3, 1]))
        got = espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE)
        assert_close(self, got, expected, "bf16")

    def test_gaps_between_pages_and_between_tables(self):
        for format in formats():
            with self.subTest(format=format):
                cache = Cache(format, 16, 40, 4, gap=1152)
                problem = Problem(cache, [(espalier.CAUSAL, 2, 40), (espalier.CAUSAL, 1, 90)], heads=2)
                expected = problem.expected() if format != "fp8_token" else None
                wide = torch.full((2, 11), 10**9, dtype=torch.int32, device=problems.DEVICE)
                wide[:, :6] = problem.table
                problem.arguments.update(block_table=wide[:, :6], max_kv_len=96)
                got = espalier.absorbed(problem.q, cache.pages, problem.make_rows(), scale=SCALE)
                if expected is None:
                    problem.cache.data = cache.memory
                    expected = problem.expected()
                assert_close(self, got, expected, format)

    def test_context_parallel_ranks_merge_to_the_whole(self):
        world = 3
        cache = Cache("bf16", 16, 60, 8)
        problem = Problem(cache, [(espalier.CAUSAL, 4, 101), (espalier.TREE, 6, 44)], heads=4)
        problem.arguments["tail_len"] = ints([4, 6])
        problem.tails = [4, 6]
        problem.arguments["words"] = ints([0] * 4 + [1, 3, 5, 11, 21, 33], torch.int64)
        problem.words = [0] * 4 + [1, 3, 5, 11, 21, 33]
        expected = problem.expected()
        parts = []
        for rank in range(world):
            lengths = [len(range(rank, kv_len, world)) for _, _, kv_len in problem.rows]
            table = cache.table(lengths)
            for row, (_, _, kv_len) in enumerate(problem.rows):
                source = slots_of(problem.table[row], kv_len, 16)[rank::world].contiguous().to(problems.DEVICE)
                target = slots_of(table[row], lengths[row], 16).to(problems.DEVICE)
                espalier.compact(cache.pages, source, target)
            arguments = dict(
                problem.arguments,
                kv_len=ints(lengths),
                block_table=table,
                global_kv_len=ints([101, 44]),
                dcp_world=world,
                dcp_rank=rank,
            )
            out = torch.empty(10, 4, 512, device=problems.DEVICE)
            parts.append(espalier.absorbed(problem.q, cache.pages, espalier.Rows(**arguments), scale=SCALE, out=out))
        whole = torch.logsumexp(torch.stack([lse for _, lse in parts]), dim=0)
        out = sum(out * torch.exp(lse - whole)[..., None] for out, lse in parts)
        assert_close(self, (out, whole), expected, "bf16")

    def test_keys_count_from_the_first_slot(self):
        for format in formats():
            with self.subTest(format=format):
                problem = Problem(Cache(format, 16, 20, 11), [(espalier.CAUSAL, 3, 131), (espalier.FULL, 2, 17)], heads=4)
                pages, options = problem.cache.pages, dict(scale=SCALE, invariant=True)
                got = espalier.absorbed(problem.q, pages, espalier.Rows(**problem.arguments, first_slot=1), **options)
                for row, (_, _, kv_len) in enumerate(problem.rows):  # each key one slot earlier
                    slots = slots_of(problem.table[row], kv_len, 16).to(problems.DEVICE)
                    espalier.compact(pages, slots[1:].contiguous(), slots[:-1].contiguous())
                problem.arguments["kv_len"] = ints([130, 16])
                moved = espalier.absorbed(problem.q, pages, problem.make_rows(), **options)
                self.assertTrue(torch.equal(got[0], moved[0]) and torch.equal(got[1], moved[1]))

    def test_8_bit_queries(self):
        cache = Cache("fp8_tensor", 64, 8, 6)
        problem = Problem(cache, [(espalier.CAUSAL, 3, 150)], heads=16)
        q = (problem.q.float() * 16).to(torch.float8_e4m3fn)
        problem.q = (q.float() / 16).double()
        out = torch.empty(3, 16, 512, device=problems.DEVICE)
        got = espalier.absorbed(q, cache.pages, problem.make_rows(), scale=SCALE, q_scale=1 / 16, out=out)
        assert_close(self, got, problem.expected(), "fp8_tensor")
        self.assertEqual(espalier.absorbed(q, cache.pages, problem.make_rows(), scale=SCALE)[0].dtype, torch.bfloat16)

    def test_workspace_of_the_caller(self):
        problem = Problem(Cache("bf16", 64, 8, 2), [(espalier.CAUSAL, 2, 100)], heads=16)
        got = espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE)
        workspace = torch.empty(128 << 20, dtype=torch.uint8, device=problems.DEVICE)
        again = espalier.absorbed(problem.q, problem.cache.pages, problem.make_rows(), scale=SCALE, workspace=workspace)
        self.assertTrue(torch.equal(got[0], again[0]))


class Decode(unittest.TestCase):
    def test_causal_and_mask(self):
        lengths, q_len = [40, 3, 0, 129, 2], 3
        for use_causal, use_mask in itertools.product((False, True), (False, True)):
            for format in [name for name in formats() if name != "fp8_token"]:
                with self.subTest(causal=use_causal, mask=use_mask, format=format):
                    cache = Cache(format, 32, 30, 11)
                    table, q = cache.table(lengths), cache.queries(len(lengths), q_len, 4, 576)
                    mask = torch.rand(len(lengths), q_len, max(lengths), generator=cache.generator) < 0.5
                    seq_lens = ints(lengths)
                    more = {}
                    if use_mask:
                        packed, offset = espalier.pack_custom_mask(mask.to(problems.DEVICE), seq_lens)
                        more = dict(custom_mask=packed, custom_mask_offset=offset)
                    got = espalier.decode(q, cache.pages, table, seq_lens, max_seq_len=160, scale=SCALE, causal=use_causal, **more)
                    expected_out = torch.zeros(got[0].shape, dtype=torch.double)
                    expected_lse = torch.full(got[1].shape, float("-inf"), dtype=torch.double)
                    numbers = cache.numbers()
                    for b, length in enumerate(lengths):
                        if length == 0:
                            continue
                        visible = causal(q_len, length) if use_causal else torch.ones(q_len, length, dtype=torch.bool)
                        if use_mask:
                            visible = visible & mask[b, :, :length]
                        keys = numbers[slots_of(table[b], length, 32)]
                        expected_out[b], expected_lse[b] = attend(q[b].cpu(), keys, keys[:, :512], visible, SCALE)
                    assert_close(self, got, (expected_out, expected_lse), format)


class Decompressed(unittest.TestCase):
    def test_causal_rows(self):
        for format in formats():
            with self.subTest(format=format):
                cache, heads = Cache(format, 64, 20, 21), 2
                rows = [(espalier.CAUSAL, 5, 5), (espalier.CAUSAL, 40, 300), (espalier.CAUSAL, 0, 9), (espalier.CAUSAL, 1, 77)]
                problem = Problem(cache, rows, heads, padding=2)
                q = cache.queries(problem.token_end, heads, 192)
                up = (torch.randn(heads, 256, 512, generator=cache.generator) * 512**-0.5).bfloat16()
                got = espalier.decompressed(q, cache.pages, problem.make_rows(), espalier.UpWeights(up.to(problems.DEVICE)), scale=192**-0.5)
                out = torch.zeros(problem.token_end, heads, 128, dtype=torch.double)
                lse = torch.full((problem.token_end, heads), float("-inf"), dtype=torch.double)
                numbers = cache.numbers()
                for row, (_, q_len, kv_len) in enumerate(rows):
                    slots = numbers[slots_of(problem.table[row], kv_len, 64)]
                    both = torch.einsum("sl,hrl->shr", slots[:, :512], up.double())
                    if format != "f32":  # up-projected numbers are rounded to bf16
                        both = both.bfloat16().double()
                    rope = slots[:, None, 512:].expand(-1, heads, -1)
                    begin, end = problem.starts[row], problem.starts[row + 1]
                    out[begin:end], lse[begin:end] = attend(
                        q[begin:end].cpu(), torch.cat([both[..., :128], rope], -1), both[..., 128:], problem.visible(row), 192**-0.5
                    )
                assert_close(self, got, (out, lse), format)


class Storage(unittest.TestCase):
    def test_append_rounds_as_torch_does(self):
        for format in formats():
            with self.subTest(format=format):
                cache = Cache(format, 16, 4, 1)
                before = cache.numbers()
                both = torch.randn(5, 600, generator=cache.generator)  # 512 and 64 are columns of it
                both[2, 30], both[4, 590] = float("nan"), float("inf")
                flags = torch.zeros(5, dtype=torch.bool, device=problems.DEVICE)
                device_both = both.to(problems.DEVICE)
                slot = ints([63, -1, 17, 0, 5], torch.int64)
                espalier.append(cache.pages, device_both[:, :512], device_both[:, 536:], slot, flags)
                self.assertEqual(flags.tolist(), [False, False, True, False, True])
                got = cache.numbers()
                given = torch.cat([both[:, :512], both[:, 536:]], dim=1)
                given = torch.where(given.isfinite(), given, 0.0)
                for token, place in enumerate(slot.tolist()):
                    if place < 0:
                        continue
                    before[place] = got[place]
                    wanted = given[token].double()
                    if format in ("f32", "bf16", "fp16"):
                        self.assertTrue(torch.equal(got[place], given[token].to(problems.DTYPES[format]).double()))
                    elif format == "fp8_tensor":
                        codes = (given[token] / cache.scale).to(torch.float8_e4m3fn)
                        self.assertTrue(torch.equal(got[place], codes.double() * cache.scale))
                    else:  # half a step of 3 mantissa bits, of the smallest step below 2^-6 of the largest number
                        largest = wanted[:512].abs().max()
                        limit = wanted[:512].abs() * 2**-4 + largest / 448 * 2**-10
                        self.assertTrue(bool(((got[place, :512] - wanted[:512]).abs() <= limit * 1.0001).all()))
                        self.assertTrue(torch.equal(got[place, 512:], given[token, 512:].bfloat16().double()))
                self.assertTrue(torch.equal(got, before), "other slots stay")

    def test_compact_moves_one_after_another(self):
        for format in formats():
            with self.subTest(format=format):
                cache = Cache(format, 16, 4, 1)
                wanted = cache.numbers()
                source, destination = [5, 40, 3], [3, 5, 60]
                for a, b in zip(source, destination):
                    wanted[b] = wanted[a]
                espalier.compact(cache.pages, ints(source, torch.int64), ints(destination, torch.int64))
                self.assertTrue(torch.equal(cache.numbers(), wanted))

    def test_sizes(self):
        self.assertEqual(espalier.page_stride("bf16", 64), 64 * 1152)
        self.assertEqual(espalier.page_stride("fp8_token", 64), -(-64 * 644 // 128) * 128)
        self.assertEqual(espalier.row_splits(2, 1024), 16)
        self.assertEqual(espalier.row_splits(2, 0), 0)
