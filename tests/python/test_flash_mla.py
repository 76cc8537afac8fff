# SPDX-License-Identifier: Apache-2.0
"""The stand-in for FlashMLA's decode call."""

import inspect
import itertools
import unittest

import problems
import torch
from problems import SCALE, Cache, assert_close, ints, random_words
from restatement import attend, causal, slots_of, tree

import espalier

# deepseek-ai/FlashMLA 9241ae3, flash_mla/flash_mla_interface.py: names in order, and which have a default.
SIGNATURE = (
    "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits= softmax_scale= causal= is_fp8_kvcache= "
    "indices= attn_sink= extra_k_cache= extra_indices_in_kvcache= topk_length= extra_topk_length="
)


def visible_of(kind: str, q_len: int, length: int, words, mask) -> torch.Tensor:
    everything = torch.ones(q_len, length, dtype=torch.bool)
    if kind == "tree":
        return tree(words, length, q_len)
    seen = causal(q_len, length) if kind.startswith("causal") else everything
    return seen & mask[:, :length] if kind.endswith("mask") else seen


class FlashMla(unittest.TestCase):
    def test_signature(self):
        parameters = inspect.signature(espalier.flash_mla_with_kvcache).parameters.values()
        theirs = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        self.assertEqual(" ".join(p.name + ("" if p.default is p.empty else "=") for p in theirs), SIGNATURE)
        self.assertTrue(all(p.default is not p.empty for p in parameters if p.kind is p.KEYWORD_ONLY))

    def test_every_mask(self):
        lengths = [40, 3, 1, 129, 64]
        for kind, q_len, heads in itertools.product(("full", "causal", "tree", "mask", "causal mask"), (1, 4), (2, 16)):
            for format in ("bf16", "fp16"):
                with self.subTest(kind=kind, q_len=q_len, heads=heads, format=format):
                    self.check(kind, q_len, heads, format, lengths)

    def check(self, kind: str, q_len: int, heads: int, format: str, lengths: list[int]) -> None:
        cache = Cache(format, 64, 12, q_len)
        table, seq_lens = cache.table(lengths), ints(lengths)
        mask = torch.rand(len(lengths), q_len, max(lengths), generator=cache.generator) < 0.5
        words = torch.tensor([random_words(cache.generator, q_len, q_len) for _ in lengths], dtype=torch.int64)
        more = {}
        if kind == "tree":
            more["tree_words"] = words.to(problems.DEVICE)
        if kind.endswith("mask"):
            more["custom_mask"], more["custom_mask_offset"] = espalier.pack_custom_mask(mask.to(problems.DEVICE), seq_lens)
        metadata, splits = espalier.get_mla_metadata(seq_lens, q_len * heads, 1)
        self.assertIsNone(splits)
        numbers = cache.numbers()
        for layer in range(2):  # which share a plan
            q = cache.queries(len(lengths), q_len, heads, 576)
            out, lse = espalier.flash_mla_with_kvcache(
                q, cache.data.unsqueeze(2), table, seq_lens, 512, metadata, splits, causal=kind.startswith("causal"), **more
            )
            self.assertEqual(tuple(out.shape), (len(lengths), q_len, heads, 512))
            self.assertEqual(tuple(lse.shape), (len(lengths), heads, q_len))
            for b, length in enumerate(lengths):
                keys = numbers[slots_of(table[b], length, 64)]
                visible = visible_of(kind, q_len, length, words[b], mask[b])
                expected = attend(q[b].cpu(), keys, keys[:, :512], visible, SCALE)
                assert_close(self, (out[b], lse[b].transpose(0, 1)), expected, format)

    def test_8_bit_caches(self):
        for format in ("fp8_tensor", "fp8_token"):
            with self.subTest(format=format):
                cache, lengths = Cache(format, 64, 12, 3), [100, 30]
                table, seq_lens, q = cache.table(lengths), ints(lengths), cache.queries(2, 2, 16, 576)
                given = cache.data.unsqueeze(2) if format == "fp8_tensor" else cache.pages
                out, lse = espalier.flash_mla_with_kvcache(
                    q, given, table, seq_lens, 512, espalier.get_mla_metadata()[0], causal=True, is_fp8_kvcache=True, kv_scale=cache.scale
                )
                numbers = cache.numbers()
                for b, length in enumerate(lengths):
                    keys = numbers[slots_of(table[b], length, 64)]
                    expected = attend(q[b].cpu(), keys, keys[:, :512], causal(2, length), SCALE)
                    assert_close(self, (out[b], lse[b].transpose(0, 1)), expected, format)

    def test_a_scale_of_ones_own_and_another_table(self):
        cache, lengths = Cache("bf16", 64, 12, 3), [100, 30]
        first, second = cache.table(lengths), cache.table(lengths)
        seq_lens, q = ints(lengths), cache.queries(2, 1, 16, 576)
        metadata = espalier.get_mla_metadata()[0]
        numbers = cache.numbers()
        for table in (first, second, first):
            out, lse = espalier.flash_mla_with_kvcache(q, cache.data.unsqueeze(2), table, seq_lens, 512, metadata, softmax_scale=0.1)
            for b, length in enumerate(lengths):
                keys = numbers[slots_of(table[b], length, 64)]
                expected = attend(q[b].cpu(), keys, keys[:, :512], causal(1, length), 0.1)
                assert_close(self, (out[b], lse[b].transpose(0, 1)), expected, "bf16")

    def test_an_empty_batch(self):
        cache = Cache("bf16", 64, 2, 3)
        table = torch.zeros(0, 4, dtype=torch.int32, device=problems.DEVICE)
        out, lse = espalier.flash_mla_with_kvcache(
            cache.queries(0, 2, 16, 576), cache.data.unsqueeze(2), table, ints([]), 512, espalier.get_mla_metadata()[0], causal=True
        )
        self.assertEqual((tuple(out.shape), tuple(lse.shape)), ((0, 2, 16, 512), (0, 16, 2)))
