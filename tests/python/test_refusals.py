# SPDX-License-Identifier: Apache-2.0
"""Hostile arguments: each is an exception with a sentence that names the thing, and the process lives on."""

import copy
import pickle
import unittest
from random import Random

import problems
import torch
from problems import SCALE, Cache, Problem, assert_close, ints

import espalier
from espalier import _native


class Base(unittest.TestCase):
    def refused(self, sentence: str, call, status: str = "invalid", error=espalier.Error) -> None:
        with self.subTest(sentence=sentence):
            with self.assertRaises(error) as caught:
                call()
            self.assertIn(sentence, str(caught.exception))
            if error is espalier.Error:
                self.assertEqual(caught.exception.status, status)
                self.assertIsInstance(caught.exception, RuntimeError)


class OfPages(Base):
    def test_caches(self):
        make = espalier.Pages
        zeros = lambda *shape, dtype=torch.bfloat16: torch.zeros(shape, dtype=dtype, device=problems.DEVICE)  # noqa: E731
        where = str(zeros(1).device)
        self.refused("the cache must be a torch tensor, is <class 'list'>", lambda: make([1, 2]), error=TypeError)
        self.refused("the cache must be a torch tensor, is <class 'NoneType'>", lambda: make(None), error=TypeError)
        self.refused(f"the cache is bfloat16 [2, 576] on {where}, wanted is [pages", lambda: make(zeros(2, 576)))
        self.refused("[2, 64, 512]", lambda: make(zeros(2, 64, 512)))
        self.refused("[2, 64, 2, 576]", lambda: make(zeros(2, 64, 2, 576)))
        self.refused("[] on", lambda: make(torch.tensor(1.0, device=problems.DEVICE)))
        self.refused("pages of 48 tokens: 16, 32, 64 or 128 are possible", lambda: make(zeros(2, 48, 576)), "unsupported")
        self.refused("pages of 0 tokens", lambda: make(zeros(2, 0, 576)), "unsupported")
        self.refused("the cache is float64 [2, 64, 576]", lambda: make(zeros(2, 64, 576, dtype=torch.float64)))
        self.refused("the cache is complex64 [2", lambda: make(zeros(2, 64, 576, dtype=torch.complex64)))
        self.refused("the cache is int32", lambda: make(zeros(2, 64, 576, dtype=torch.int32)))
        self.refused("or uint8 with the format", lambda: make(zeros(2, 64, 576, dtype=torch.uint8)))
        self.refused("which is not fp16", lambda: make(zeros(2, 64, 576), format="fp16"))
        self.refused("the cache format int4: f32, bf16", lambda: make(zeros(2, 64, 576), format="int4"))
        self.refused("slots lie 1 and their columns 64 numbers apart", lambda: make(zeros(2, 576, 64).transpose(1, 2)))
        self.refused("slots lie 1152", lambda: make(zeros(2, 64, 1152)[:, :, :576]))
        self.refused("lie 0 apart", lambda: make(zeros(1, 64, 576).expand(9, 64, 576)))
        self.refused("pages of 64 slots, page_tokens is 32", lambda: make(zeros(2, 64, 576), page_tokens=32))
        self.refused("the cache's scale is nan", lambda: make(zeros(2, 64, 576), scale=float("nan")))
        self.refused("the cache's scale is 1e+300", lambda: make(zeros(2, 64, 576), scale=1e300))
        self.refused("must be", lambda: make(zeros(2, 64, 576), scale="1"), error=TypeError)
        self.refused("require grad", lambda: make(zeros(2, 64, 576).requires_grad_()), error=BufferError)
        self.refused("", lambda: make(torch.empty(2, 64, 576, device="meta")), error=Exception)
        self.refused("", lambda: make(torch.zeros(2, 64).to_sparse()), error=Exception)

    def test_pages_by_token(self):
        make = lambda data, **more: espalier.Pages(data, format="fp8_token", **more)  # noqa: E731
        stride = espalier.page_stride("fp8_token", 64)
        data = torch.zeros(3, stride, dtype=torch.uint8, device=problems.DEVICE)
        self.refused("wanted is uint8 [pages, bytes] and page_tokens", lambda: make(data))
        self.refused("wanted is uint8 [pages, bytes]", lambda: make(data.view(3, 1, stride), page_tokens=64))
        self.refused(f"have {stride} bytes that lie 1 apart, wanted are at least", lambda: make(data, page_tokens=128))
        self.refused("that lie 3 apart", lambda: make(data.view(stride, 3).t(), page_tokens=64))
        self.refused("5 tokens", lambda: make(data, page_tokens=5), "unsupported")
        self.refused("which 32 bits do not hold", lambda: make(data, page_tokens=2**40))
        self.refused("", lambda: make(data, page_tokens=2**70), error=OverflowError)
        odd = torch.zeros(3 * stride + 64, dtype=torch.uint8, device=problems.DEVICE)
        self.refused("4 bytes behind a multiple of 16", lambda: make(odd[4 : 4 + 3 * stride].view(3, stride), page_tokens=64))
        gaps = odd.as_strided((2, stride), (stride + 4, 1))
        self.refused(f"its pages {stride + 4} bytes apart", lambda: make(gaps, page_tokens=64))

    def test_sizes(self):
        self.refused("the cache format int4", lambda: espalier.page_stride("int4", 64))
        self.refused("pages of -1 tokens", lambda: espalier.page_stride("bf16", -1), "unsupported")
        self.refused("q_len is 4294967296, which 32 bits do not hold", lambda: espalier.row_splits(2**32, 1))

    def test_objects_are_made_whole_and_not_copied(self):
        for kind in (espalier.Pages, espalier.Rows, _native.Plan, _native.Context):
            self.refused("", lambda: kind.__new__(kind), error=TypeError)
            self.refused("", lambda: object.__new__(kind), error=TypeError)
            self.refused("", lambda: type("Sub", (kind,), {}), error=TypeError)
        pages = Cache("bf16", 16, 2, 0).pages
        self.refused("", lambda: copy.deepcopy(pages), error=TypeError)
        self.refused("", lambda: pickle.dumps(pages), error=TypeError)
        self.refused("", lambda: setattr(pages, "format", "f32"), error=AttributeError)


class OfRows(Base):
    def setUp(self):
        self.problem = Problem(Cache("bf16", 16, 30, 0), [(espalier.TREE, 3, 40), (espalier.DENSE, 2, 20)], heads=2)

    def with_changed(self, **changed):
        return lambda: espalier.Rows(**dict(self.problem.arguments, **changed))

    def test_types_shapes_and_strides(self):
        where = str(ints([0]).device)
        for name in ("q_indptr", "kv_len", "block_table", "tail_len"):
            tensor = self.problem.arguments[name]
            self.refused(f"{name} is int64", self.with_changed(**{name: tensor.long()}))
            self.refused(f"{name} is float32", self.with_changed(**{name: tensor.float()}))
            self.refused(f"{name} must be a torch tensor", self.with_changed(**{name: tensor.tolist()}), error=TypeError)
        self.refused(f"kv_len is int64 [2] on {where}, wanted is int32 [any] on {where}", self.with_changed(kv_len=ints([1, 2], torch.int64)))
        self.refused(f"q_indptr is int32 [2] on {where}, wanted is int32 [3]", self.with_changed(q_indptr=ints([0, 3])))
        self.refused("kv_len is int32 [1, 2]", self.with_changed(kv_len=ints([[1, 2]])))
        self.refused("q_indptr is int32 [3]", self.with_changed(kv_len=ints([])))
        self.refused("kv_len of shape [2] is not contiguous: its strides are [2]", self.with_changed(kv_len=ints([40, 0, 20])[::2]))
        self.refused("kv_len of shape [2] is not contiguous: its strides are [0]", self.with_changed(kv_len=ints([9]).expand(2)))
        self.refused("block_table is int32 [1, 3]", self.with_changed(block_table=self.problem.table[:1]))
        self.refused("block_table is int32 [2]", self.with_changed(block_table=ints([0, 1])))
        columns = ints([[0, 0, 0]] * 2).as_strided((2, 2), (1, 3))
        self.refused("block_table of 2 entries per row has rows 1 and entries 3 apart", self.with_changed(block_table=columns))
        self.refused("has rows 0 and entries 1 apart", self.with_changed(block_table=ints([[0, 1]]).expand(2, 2)))
        self.refused("mask is int32", self.with_changed(mask=ints([1, 1])))
        self.refused("words is int32 [5]", self.with_changed(words=ints([1] * 5)))
        self.refused("words is int64 [4]", self.with_changed(words=ints([1] * 4, torch.int64)))
        self.refused("custom_mask is int64", self.with_changed(custom_mask=ints([1], torch.int64)))
        self.refused("custom_mask is uint8 [2, 20]", self.with_changed(custom_mask=ints([[1] * 20] * 2, torch.uint8)))
        self.refused("custom_mask_offset is int32", self.with_changed(custom_mask_offset=ints([0, 0])))
        self.refused("table_row is int64", self.with_changed(table_row=ints([0, 1], torch.int64)))
        self.refused("global_kv_len is int32 [3]", self.with_changed(global_kv_len=ints([0, 1, 2])))

    def test_numbers(self):
        self.refused("token_end is 4294967296, which 32 bits do not hold", self.with_changed(token_end=2**32))
        self.refused("max_kv_len is -9223372036854775807", self.with_changed(max_kv_len=1 - 2**63))
        self.refused("", self.with_changed(max_q_len=2**64), error=OverflowError)
        self.refused("", self.with_changed(max_q_len=1.5), error=TypeError)
        self.refused("", self.with_changed(surprise=1), error=TypeError)
        arguments = dict(self.problem.arguments)
        del arguments["max_kv_len"]
        self.refused("Rows() needs max_kv_len", lambda: espalier.Rows(**arguments), error=TypeError)


class OfCalls(Base):
    """What the calls refuse on every device, since it is known on the host."""

    def setUp(self):
        self.cache = Cache("bf16", 16, 30, 0)
        self.problem = Problem(self.cache, [(espalier.TREE, 3, 40), (espalier.DENSE, 2, 20)], heads=2)
        self.rows = self.problem.make_rows()

    def absorbed(self, q=None, pages=None, rows=None, **options):
        options = dict(dict(scale=SCALE), **options)
        call = (self.problem.q if q is None else q, pages or self.cache.pages, rows or self.rows)
        return lambda: espalier.absorbed(*call, **options)

    def other_rows(self, **changed):
        return espalier.Rows(**dict(self.problem.arguments, **changed))

    def test_queries(self):
        q = self.problem.q
        self.refused("q must be a torch tensor", lambda: espalier.absorbed(None, self.cache.pages, self.rows, scale=1.0), error=TypeError)
        self.refused("q is [5, 576], wanted is [tokens, heads, 576]", self.absorbed(q[:, 0]))
        self.refused("q is bfloat16 [4, 2, 576]", self.absorbed(q[:4]))
        self.refused("q is bfloat16 [5, 2, 512]", self.absorbed(q[:, :, :512].contiguous()))
        self.refused("q is float64", self.absorbed(q.double()))
        self.refused("q is int32", self.absorbed(q.int()))
        self.refused("q of shape [5, 2, 576] is not contiguous: its strides are [1728, 864, 1]", self.absorbed(torch.zeros(5, 2, 864, dtype=q.dtype, device=q.device)[:, :, :576]))
        self.refused("0 heads: 1 to 128 are possible", self.absorbed(q[:, :0]), "unsupported")
        wide = torch.zeros(5, 129, 576, dtype=q.dtype, device=q.device)
        self.refused("129 heads: 1 to 128 are possible", self.absorbed(wide), "unsupported")
        self.refused("absorbed attention of f16 queries over a bf16 cache", self.absorbed(q.half()), "unsupported")
        self.refused("require grad", self.absorbed(q.clone().requires_grad_()), error=BufferError)
        self.refused("cpu and cuda are possible", self.absorbed(q.to("meta")), "unsupported")

    def test_structs(self):
        self.refused("", lambda: espalier.absorbed(self.problem.q, self.cache.data, self.rows, scale=1.0), error=TypeError)
        self.refused("", lambda: espalier.absorbed(self.problem.q, self.cache.pages, None, scale=1.0), error=TypeError)
        self.refused("", lambda: espalier.absorbed(self.problem.q, self.rows, self.cache.pages, scale=1.0), error=TypeError)
        self.refused("", self.absorbed(plan="plan"), error=AttributeError)
        self.refused("", self.absorbed(scale=None), error=TypeError)
        self.refused("scale, of the softmax", self.absorbed(scale=float("nan")), error=TypeError)
        self.refused("scale is inf", self.absorbed(scale=float("inf")))
        self.refused("q_scale is 1e+39", self.absorbed(q_scale=1e39))
        self.refused("-1 multiprocessors", self.absorbed(multiprocessors=-1))
        self.refused("multiprocessors is 8589934592", self.absorbed(multiprocessors=2**33))

    def test_outputs_and_workspace(self):
        out = torch.zeros(5, 2, 512, dtype=torch.float32, device=problems.DEVICE)
        lse = out[:, :, 0].contiguous()
        self.refused("out is float32 [5, 2, 511]", self.absorbed(out=out[:, :, :511]))
        self.refused("out is int32", self.absorbed(out=out.int()))
        self.refused("out of shape [5, 2, 512] is not contiguous", self.absorbed(out=out.expand(5, 2, 512)[:, :1].expand(5, 2, 512)))
        self.refused("lse is float16", self.absorbed(lse=lse.half()))
        self.refused("lse is float32 [2, 5]", self.absorbed(lse=lse.t()))
        self.refused("out must be a torch tensor", self.absorbed(out=[1.0]), error=TypeError)
        small = torch.zeros(64, dtype=torch.uint8, device=problems.DEVICE)
        self.refused("a workspace of 64 bytes, this call needs", self.absorbed(workspace=small), "exhausted")
        self.refused("workspace is int8", self.absorbed(workspace=small.char()))
        large = torch.empty(128 << 20, dtype=torch.uint8, device=problems.DEVICE)
        self.refused("the workspace lies 1 bytes behind a multiple of 64", self.absorbed(workspace=large[1:]))

    def test_overlaps(self):
        data = self.problem.arguments
        large = torch.empty(128 << 20, dtype=torch.uint8, device=problems.DEVICE)
        table = large[: data["block_table"].numel() * 4].view(torch.int32).view_as(data["block_table"])
        table.copy_(data["block_table"])
        self.refused("block_table and workspace overlap", self.absorbed(rows=self.other_rows(block_table=table), workspace=large))
        out = self.problem.q.new_zeros(5 * 2 * 576 + 64)
        self.refused("q and out overlap", self.absorbed(out[64:].view(5, 2, 576), out=out[: 5 * 2 * 512].view(5, 2, 512)))
        self.refused("out and lse overlap", self.absorbed(out=large[:10240].view(torch.bfloat16).view(5, 2, 512), lse=large[:40].view(torch.float32).view(5, 2)))
        slot = self.cache.memory.view(-1)[:8].view(torch.int64)
        self.refused("overlap", lambda: espalier.compact(self.cache.pages, slot, slot))

    def test_host_numbers_of_rows(self):
        self.refused("capacities: 2 rows", self.absorbed(rows=self.other_rows(max_kv_len=-1)))
        self.refused("context-parallel rank 2 of 2", self.absorbed(rows=self.other_rows(dcp_world=2, dcp_rank=2)))
        self.refused("context parallel over 2 ranks needs global_kv_len", self.absorbed(rows=self.other_rows(dcp_world=2)))
        self.refused("first_slot 2", self.absorbed(rows=self.other_rows(first_slot=2)), "unsupported")
        self.refused("total_splits -1", self.absorbed(rows=self.other_rows(total_splits=-1)))
        self.refused("total_splits 9000000000000000000", self.absorbed(rows=self.other_rows(total_splits=9 * 10**18)))
        wide = torch.zeros(2, 9, dtype=torch.int32, device=problems.DEVICE)
        self.refused("100 slots reach beyond the 3 entries of block_table", self.absorbed(rows=self.other_rows(block_table=wide[:, :3], max_kv_len=100)))
        # The CPU's workspace does not grow with these; a GPU's does, and more than there is would be needed.
        huge = self.other_rows(max_kv_len=2**31 - 1, max_q_len=2**31 - 1)
        small = torch.zeros(64, dtype=torch.uint8, device=problems.DEVICE)
        for invariant in (False, True):
            self.refused("a workspace of 64 bytes, this call needs", self.absorbed(rows=huge, workspace=small, invariant=invariant), "exhausted")

    def test_decode(self):
        q, pages, table = self.cache.queries(2, 1, 4, 576), self.cache.pages, self.problem.table
        lengths = ints([40, 20])
        call = lambda *a, **k: lambda: espalier.decode(*a, **dict(dict(max_seq_len=48, scale=1.0), **k))  # noqa: E731
        self.refused("q is [1, 4, 576]", call(q[0], pages, table, lengths))
        self.refused("q is bfloat16 [2, 1, 4, 64]", call(q[..., :64].contiguous(), pages, table, lengths))
        self.refused("seq_lens is int64", call(q, pages, table, lengths.long()))
        self.refused("seq_lens is int32 [1]", call(q, pages, table, lengths[:1]))
        self.refused("block_table is int32 [1, 3]", call(q, pages, table[:1], lengths))
        self.refused("max_seq_len -1", call(q, pages, table, lengths, max_seq_len=-1))
        self.refused("max_seq_len is 1099511627776", call(q, pages, table, lengths, max_seq_len=2**40))
        mask, offset = espalier.pack_custom_mask(torch.ones(2, 1, 48, dtype=torch.bool, device=problems.DEVICE), lengths)
        self.refused("a custom mask of 96 bytes without cmask_off", call(q, pages, table, lengths, custom_mask=mask))
        self.refused("custom_mask is float32", call(q, pages, table, lengths, custom_mask=mask.float(), custom_mask_offset=offset))
        self.refused("custom_mask_offset is int64 [1]", call(q, pages, table, lengths, custom_mask=mask, custom_mask_offset=offset[:1]))
        self.refused("fp8_token pages are no", call(q, Cache("fp8_token", 16, 4, 0).pages, table, lengths), "unsupported")
        gaps = Cache("bf16", 16, 30, 0, gap=1152).pages
        self.refused("they must lie close", call(q, gaps, table, lengths), "unsupported")
        self.refused("overlap", call(q, pages, table, lengths, out=torch.zeros(2, 1, 4, 512, device=problems.DEVICE), lse=q.view(torch.float32).view(-1)[:8].view(2, 1, 4)))
        self.refused("mask is torch.float32 [2, 1, 48]", lambda: espalier.pack_custom_mask(torch.ones(2, 1, 48), lengths))
        self.refused("seq_lens is [1] on", lambda: espalier.pack_custom_mask(torch.ones(2, 1, 48, dtype=torch.bool, device=problems.DEVICE), lengths[:1]))

    def test_decompressed(self):
        rows = self.problem.make_rows()
        q = self.cache.queries(5, 2, 192)
        up = espalier.UpWeights(torch.zeros(2, 256, 512, dtype=torch.bfloat16, device=problems.DEVICE))
        call = lambda *a: lambda: espalier.decompressed(*a, scale=1.0)  # noqa: E731
        self.refused("up must be UpWeights", call(q, self.cache.pages, rows, up._data), error=TypeError)
        self.refused("q is bfloat16 [5, 2, 576]", call(self.problem.q, self.cache.pages, rows, up))
        three = espalier.UpWeights(torch.zeros(3, 256, 512, dtype=torch.bfloat16, device=problems.DEVICE))
        self.refused("up is bfloat16 [3, 256, 512]", call(q, self.cache.pages, rows, three))
        self.refused("decompressed attention over 2 context-parallel ranks", call(q, self.cache.pages, self.other_rows(dcp_world=2, global_kv_len=ints([80, 40])), up), "unsupported")

    def test_append_and_compact(self):
        pages = self.cache.pages
        latent, rope = torch.zeros(2, 512, device=problems.DEVICE), torch.zeros(2, 64, device=problems.DEVICE)
        slot = ints([0, 1], torch.int64)
        call = lambda *a: lambda: espalier.append(pages, *a)  # noqa: E731
        self.refused("latent is bfloat16", call(latent.bfloat16(), rope, slot))
        self.refused("latent is float32 [1, 512]", call(latent[:1], rope, slot))
        self.refused("rope is float32 [2, 32]", call(latent, rope[:, :32], slot))
        self.refused("slot is int32", call(latent, rope, slot.int()))
        self.refused("latent's columns lie 2", call(torch.zeros(512, 2, device=problems.DEVICE).t(), rope, slot))
        self.refused("nonfinite is int32", call(latent, rope, slot, slot.int()))
        self.refused("nonfinite is bool [3]", call(latent, rope, slot, torch.zeros(3, dtype=torch.bool, device=problems.DEVICE)))
        zero = espalier.Pages(torch.zeros(2, 16, 576, device=problems.DEVICE).to(torch.float8_e4m3fn), scale=0.0)
        self.refused("an fp8_tensor cache with scale 0", lambda: espalier.append(zero, latent, rope, slot))
        self.refused("source is int32", lambda: espalier.compact(pages, slot.int(), slot))
        self.refused("destination is int64 [1]", lambda: espalier.compact(pages, slot, slot[:1]))

    def test_flash_mla(self):
        q, table, lengths = self.cache.queries(2, 1, 4, 576), self.problem.table, ints([40, 20])
        k_cache = self.cache.data.unsqueeze(2)

        def call(q=q, k_cache=k_cache, table=table, lengths=lengths, head_dim_v=512, metadata=None, **more):
            metadata = metadata or espalier.get_mla_metadata()[0]
            return lambda: espalier.flash_mla_with_kvcache(q, k_cache, table, lengths, head_dim_v, metadata, **more)

        for name in ("indices", "attn_sink", "extra_k_cache", "extra_indices_in_kvcache", "topk_length", "extra_topk_length"):
            self.refused(f"{name} is of sparse attention", call(**{name: lengths}), "unsupported")
        self.refused("head_dim_v is 128", call(head_dim_v=128))
        self.refused("get_mla_metadata", call(metadata="meta"), error=TypeError)
        self.refused("num_splits must be None", call(num_splits=lengths), error=TypeError)
        self.refused("is_fp8_kvcache is True, but the cache is bf16", call(is_fp8_kvcache=True))
        self.refused("q is [1, 4, 576]", call(q=q[0]))
        self.refused("q of shape [2, 1, 4, 576] is not contiguous", call(q=self.cache.queries(2, 1, 4, 600)[..., :576]))
        self.refused("q is bfloat16 [2, 4, 512]", call(q=q[..., :512].contiguous()))
        self.refused("kv_len is int64", call(lengths=lengths.long()))
        self.refused("cache_seqlens must be a torch tensor", call(lengths=[40, 20]), error=TypeError)
        self.refused("block_table is [3]", call(table=table[0]))
        self.refused("block_table must be a torch tensor", call(table=None), error=TypeError)
        self.refused("block_table is int64", call(table=table.long()))
        words = torch.ones(2, 1, dtype=torch.int64, device=problems.DEVICE)
        self.refused("tree_words say all", call(tree_words=words, causal=True))
        self.refused("tree_words is [2], wanted is [2, 1]", call(tree_words=words[:, 0]))
        self.refused("words is int32", call(tree_words=words.int()))
        metadata = espalier.get_mla_metadata()[0]
        call(metadata=metadata)()
        self.refused("each shape needs its own get_mla_metadata()", call(metadata=metadata, causal=True))
        self.refused("capacities: 2 rows, 2 tokens, max_q_len 1, max_kv_len -5", call(max_seq_len=-5))


class LyingTensors(Base):
    """Objects whose __dlpack__ misbehaves."""

    def test_other_answers(self):
        class Liar:
            def __init__(self, answer):
                self.answer = answer

            def __dlpack__(self, **_):
                return self.answer() if callable(self.answer) else self.answer

        used = torch.zeros(2, 64, 576).__dlpack__()
        torch.from_dlpack(used)  # which takes it
        for answer in (None, 5, "capsule", used):
            self.refused("gave no capsule named dltensor", lambda: espalier.Pages(Liar(answer)))

        def fail():
            raise ValueError("no tensor today")

        self.refused("no tensor today", lambda: espalier.Pages(Liar(fail)), error=ValueError)


class Hostile(Base):
    """Random damage to lengths, tables, masks, shapes, types and capacities: an exception or a result, and the process lives on.
    A GPU, whose host does not look into arrays, must not follow them either: every call is waited for."""

    NUMBERS = [-(2**63), -(2**31), -65, -1, 0, 1, 2, 3, 15, 17, 40, 64, 65, 1000, 2**31 - 1, 2**31, 2**40, 2**63 - 1]

    def damaged(self, random: Random, value):
        if not torch.is_tensor(value):
            return random.choice(self.NUMBERS)
        kind = random.randrange(8)
        if kind == 0:
            return random.choice([None, value.long(), value.float(), value.char(), value.tolist()])
        if kind == 1:
            return random.choice([value[:-1], value[::2], value.unsqueeze(0), value[:0], torch.cat([value, value]), value.t()])
        value = value.clone()
        if value.numel() > 0:
            limits = torch.iinfo(value.dtype)
            number = min(max(random.choice(self.NUMBERS), limits.min), limits.max)
            value.view(-1)[random.randrange(value.numel())] = number
        return value

    def attempt(self, call) -> bool:
        """Whether there was a result; torch's own refusals (memory, say) are RuntimeErrors."""
        try:
            call()
        except (espalier.Error, TypeError, OverflowError, RuntimeError):
            return False
        if problems.DEVICE == "cuda":
            torch.cuda.synchronize()
        return True

    def test_random_damage(self):
        random = Random(7)
        cache = Cache("bf16", 16, 60, 7)
        rows = [(espalier.TREE, 3, 40), (espalier.DENSE, 2, 20), (espalier.CAUSAL, 5, 70), (espalier.FULL, 1, 9)]
        problem = Problem(cache, rows, heads=2, padding=2)
        up = espalier.UpWeights(torch.zeros(2, 256, 512, dtype=torch.bfloat16, device=problems.DEVICE))
        q192, q4 = cache.queries(13, 2, 192), cache.queries(4, 2, 2, 576)
        computed = [0, 0, 0]
        rounds = 400
        for _ in range(rounds):
            arguments = dict(problem.arguments)
            for name in random.sample(list(arguments), random.randint(1, 3)):
                arguments[name] = self.damaged(random, arguments[name])
            options = dict(scale=SCALE, invariant=random.random() < 0.5, plan=random.choice([None, espalier.Plan()]))
            computed[0] += self.attempt(lambda: espalier.absorbed(problem.q, cache.pages, espalier.Rows(**arguments), **options))
            arguments["mask"] = ints([espalier.CAUSAL] * 4, torch.uint8)
            computed[1] += self.attempt(lambda: espalier.decompressed(q192, cache.pages, espalier.Rows(**arguments), up, scale=1.0))
            computed[2] += self.attempt(
                lambda: espalier.decode(
                    q4,
                    cache.pages,
                    arguments["block_table"],
                    arguments["kv_len"],
                    max_seq_len=arguments["max_kv_len"],
                    scale=SCALE,
                    causal=random.random() < 0.5,
                    custom_mask=arguments["custom_mask"],
                    custom_mask_offset=arguments["custom_mask_offset"],
                )
            )
        for count in computed:  # some damage is harmless, some is not
            self.assertGreater(count, rounds // 20)
        expected = problem.expected()
        assert_close(self, espalier.absorbed(problem.q, cache.pages, problem.make_rows(), scale=SCALE), expected, "bf16")


class OnTheHost(Base):
    """What only the CPU sees, since it looks into arrays; run.py leaves these out on a GPU."""

    def setUp(self):
        self.cache = Cache("bf16", 16, 30, 0)
        self.problem = Problem(self.cache, [(espalier.TREE, 3, 40), (espalier.DENSE, 2, 20)], heads=2)

    def run_with(self, **changed):
        rows = espalier.Rows(**dict(self.problem.arguments, **changed))
        return lambda: espalier.absorbed(self.problem.q, self.cache.pages, rows, scale=SCALE)

    def test_arrays(self):
        self.refused("row 0: kv_len -1, between 0 and max_kv_len 40", self.run_with(kv_len=ints([-1, 20])))
        self.refused("row 1: kv_len 41, between", self.run_with(kv_len=ints([40, 41])))
        self.refused("row 1: 21 cached slots need 2 pages, its block table has 1", self.run_with(kv_len=ints([16, 21]), block_table=ints([[0], [1]])))
        self.refused("row 0: q_indptr falls from 3 to 2", self.run_with(q_indptr=ints([3, 2, 5])))
        self.refused("query tokens -1 to 5 lie outside 0 to 5", self.run_with(q_indptr=ints([-1, 2, 5])))
        self.refused("query tokens 0 to 6 lie outside", self.run_with(q_indptr=ints([0, 3, 6])))
        self.refused("row 0: 3 query tokens, more than max_q_len 2", self.run_with(max_q_len=2))
        self.refused("row 0: mask kind 9", self.run_with(mask=ints([9, 3], torch.uint8)), "unsupported")
        self.refused("row 0 is a tree without words", self.run_with(words=None))
        self.refused("row 0: a tree tail of 2 slots", self.run_with(tail_len=ints([2, 2])))
        self.refused("row 0: a tree tail of 65 slots", self.run_with(tail_len=ints([65, 2])))
        self.refused("row 1 has a dense mask, but the call gives none", self.run_with(custom_mask=None, custom_mask_offset=None))
        bad = self.problem.table.clone()
        bad[0, 1] = 30
        self.refused("row 0: entry 1 of the block table is page 30 of 30", self.run_with(block_table=bad))
        bad[0, 1] = -1
        self.refused("is page -1 of 30", self.run_with(block_table=bad))
        self.refused("row 1 has block table 2 of 2", self.run_with(table_row=ints([0, 2])))
        self.refused("splits, more than total_splits 1", self.run_with(total_splits=1))
        self.refused("a dense mask of", self.run_with(custom_mask_offset=None))

    def test_offsets_of_masks_hide_and_are_not_followed(self):
        for offset in (-(2**63), -5, 10**12, 2**63 - 1):
            with self.subTest(offset=offset):
                out, lse = self.run_with(custom_mask_offset=ints([0, offset], torch.int64))()
                if offset != -5:
                    self.assertTrue(bool((lse[3:] == float("-inf")).all()))
                    self.assertEqual(int(out[3:].count_nonzero()), 0)

    def test_slots_and_lengths(self):
        latent, rope = torch.zeros(1, 512), torch.zeros(1, 64)
        self.refused("token 0 is slot 480 of 480", lambda: espalier.append(self.cache.pages, latent, rope, ints([480], torch.int64)))
        self.refused("source 0 is slot -1", lambda: espalier.compact(self.cache.pages, ints([-1], torch.int64), ints([0], torch.int64)))
        self.refused("destination 0 is slot 999", lambda: espalier.compact(self.cache.pages, ints([0], torch.int64), ints([999], torch.int64)))
        q = self.cache.queries(2, 1, 4, 576)
        self.refused(
            "sequence 1: 50 slots, between 0 and max_seq_len 48",
            lambda: espalier.decode(q, self.cache.pages, self.problem.table, ints([40, 50]), max_seq_len=48, scale=1.0),
        )
        rows = self.problem.make_rows()
        up = espalier.UpWeights(torch.zeros(2, 256, 512, dtype=torch.bfloat16))
        self.refused(
            "row 0: decompressed attention with a mask that is not causal",
            lambda: espalier.decompressed(self.cache.queries(5, 2, 192), self.cache.pages, rows, up, scale=1.0),
            "unsupported",
        )
        self.refused("rows is float32", lambda: espalier.UpWeights(torch.zeros(2, 256, 512)))
        self.refused("rows is bfloat16 [2, 128, 512]", lambda: espalier.UpWeights(torch.zeros(2, 128, 512, dtype=torch.bfloat16)))
        self.refused("not contiguous", lambda: espalier.UpWeights(torch.zeros(2, 512, 256, dtype=torch.bfloat16).transpose(1, 2)))
        self.refused("129 heads", lambda: espalier.UpWeights(torch.zeros(129, 256, 512, dtype=torch.bfloat16)), "unsupported")

    def test_addresses_and_devices(self):
        memory = bytearray(4 * 9)
        odd = torch.frombuffer(memory, dtype=torch.int32, offset=1, count=2)
        self.refused("kv_len lies 1 bytes behind a multiple of 4", lambda: self.run_with(kv_len=odd))
        self.refused("1025 threads: 0 to 1024 are possible", lambda: espalier.set_threads(1025))
        self.refused("-1 threads", lambda: espalier.set_threads(-1))
        self.refused("attention on tpu", lambda: _native.Context("tpu"), "unsupported")
