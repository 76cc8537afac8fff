# SPDX-License-Identifier: Apache-2.0
"""Random problems on the device under test, and the tolerances of docs/mla_contract.md (Accuracy)."""

import torch
from restatement import attend, cached, causal, slots_of, tree

import espalier

DEVICE = "cpu"  # run.py --device
SCALE = 576**-0.5
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8_tensor": torch.bfloat16, "fp8_token": torch.bfloat16}
TOLERANCE = {"f32": 1e-5, "bf16": 3.5e-3, "fp16": 3.5e-3, "fp8_tensor": 4e-3, "fp8_token": 4e-3}


def formats() -> list[str]:
    return [name for name in DTYPES if DEVICE == "cpu" or name != "f32"]


def ints(values, dtype=torch.int32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def random_words(generator: torch.Generator, q_len: int, tail: int) -> list[int]:
    """Any bits of the tail, and the token's own place."""
    bits = torch.randint(0, 2, (q_len, tail), generator=generator, dtype=torch.int64)
    for token in range(q_len):
        bits[token, tail - q_len + token] = 1
    words = [sum(int(bit) << place for place, bit in enumerate(row)) for row in bits.tolist()]
    return [word - (1 << 64) if word >= 1 << 63 else word for word in words]  # as int64 has it


class Cache:
    """A pool of pages filled by append() with normal numbers, and which of them a sequence has."""

    def __init__(self, format: str, page_tokens: int, pages: int, seed: int, gap: int = 0):
        self.generator = torch.Generator().manual_seed(seed)
        self.format, self.page_tokens, self.scale = format, page_tokens, 0.03125 if format == "fp8_tensor" else 1.0
        stride = espalier.page_stride(format, page_tokens)
        self.memory = torch.zeros(pages, stride + gap, dtype=torch.uint8, device=DEVICE)
        if format == "fp8_token":
            self.data = self.memory
            self.pages = espalier.Pages(self.data, format=format, page_tokens=page_tokens)
        else:
            dtype = torch.float8_e4m3fn if format == "fp8_tensor" else DTYPES[format]
            whole = self.memory.view(dtype)
            self.data = whole.as_strided((pages, page_tokens, 576), (whole.shape[1], 576, 1))
            self.pages = espalier.Pages(self.data, scale=self.scale)
        latent = torch.randn(pages * page_tokens, 512, generator=self.generator).to(DEVICE)
        rope = torch.randn(pages * page_tokens, 64, generator=self.generator).to(DEVICE)
        espalier.append(self.pages, latent, rope, torch.arange(pages * page_tokens, device=DEVICE))
        self.free = torch.randperm(pages, generator=self.generator).tolist()

    def table(self, lengths: list[int]) -> torch.Tensor:
        """A block table over own pages; entries that no length reaches hold page ids that do not exist."""
        used = [-(-length // self.page_tokens) for length in lengths]
        width = max([*used, 1])
        return ints([[self.free.pop() for _ in range(count)] + [10**9] * (width - count) for count in used])

    def numbers(self) -> torch.Tensor:
        return cached(self.data.cpu(), self.format, self.page_tokens, self.scale)

    def queries(self, *shape: int) -> torch.Tensor:
        q = torch.randn(*shape, generator=self.generator)
        return q.to(DTYPES[self.format]).to(DEVICE)


class Problem:
    """Rows of every mask, as many tokens as they like, over one cache; `expected()` by the restatement."""

    KINDS = [espalier.FULL, espalier.CAUSAL, espalier.TREE, espalier.DENSE]

    def __init__(self, cache: Cache, rows: list[tuple[int, int, int]], heads: int, padding: int = 0, table=None, **more):
        """rows: (mask, q_len, kv_len)."""
        self.cache, self.rows, self.heads = cache, rows, heads
        generator = cache.generator
        starts = [0]
        words, tails, dense, offsets = [], [], [], []
        for mask, q_len, kv_len in rows:
            tails.append(min(64, max(q_len, kv_len)) if kv_len % 2 else q_len)
            words += random_words(generator, q_len, tails[-1]) if mask == espalier.TREE else [0] * q_len
            offsets.append(len(dense))
            if mask == espalier.DENSE:
                dense += torch.randint(0, 2, (q_len * kv_len,), generator=generator).tolist()
            starts.append(starts[-1] + q_len)
        self.tokens = starts[-1]
        self.starts, self.words, self.tails, self.dense, self.offsets = starts, words, tails, dense, offsets
        self.token_end = self.tokens + padding
        lengths = [kv_len for _, _, kv_len in rows]
        self.table = cache.table(lengths) if table is None else table
        self.q = cache.queries(self.token_end, heads, 576)
        self.arguments = dict(
            q_indptr=ints(starts),
            kv_len=ints(lengths),
            block_table=self.table,
            mask=ints([mask for mask, _, _ in rows], torch.uint8),
            token_end=self.token_end,
            max_q_len=max(q_len for _, q_len, _ in rows),
            max_kv_len=max([*lengths, 1]),
            tail_len=ints(tails),
            words=ints(words + [0] * padding, torch.int64),
            custom_mask=ints(dense or [0], torch.uint8),
            custom_mask_offset=ints(offsets, torch.int64),
        )
        self.arguments.update(more)

    def make_rows(self) -> espalier.Rows:
        return espalier.Rows(**self.arguments)

    def visible(self, row: int) -> torch.Tensor:
        mask, q_len, kv_len = self.rows[row]
        if mask == espalier.FULL:
            return torch.ones(q_len, kv_len, dtype=torch.bool)
        if mask == espalier.CAUSAL:
            return causal(q_len, kv_len)
        if mask == espalier.TREE:
            words = torch.tensor(self.words[self.starts[row] : self.starts[row + 1]], dtype=torch.int64)
            return tree(words, kv_len, self.tails[row])
        begin = self.offsets[row]
        return torch.tensor(self.dense[begin : begin + q_len * kv_len]).reshape(q_len, kv_len) != 0

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        out = torch.zeros(self.token_end, self.heads, 512, dtype=torch.double)
        lse = torch.full((self.token_end, self.heads), float("-inf"), dtype=torch.double)
        numbers = self.cache.numbers()
        for row, (_, q_len, kv_len) in enumerate(self.rows):
            begin, end = self.starts[row], self.starts[row + 1]
            if q_len == 0 or kv_len == 0:
                continue
            keys = numbers[slots_of(self.table[row], kv_len, self.cache.page_tokens)]
            out[begin:end], lse[begin:end] = attend(
                self.q[begin:end].cpu(), keys, keys[:, :512], self.visible(row), SCALE
            )
        return out, lse


def assert_close(test, got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor], format: str) -> None:
    """Per (token, head): relative L2 of out, and lse; a token that sees nothing is 0 and -inf exactly."""
    out, lse = got[0].cpu().double(), got[1].cpu().double()
    wanted, wanted_lse = expected
    nothing = wanted_lse == float("-inf")
    test.assertTrue(torch.equal(lse == float("-inf"), nothing), "who sees nothing")
    test.assertEqual(int(out[nothing].count_nonzero()), 0, "what sees nothing is 0")
    error = (out - wanted)[~nothing].norm(dim=-1) / wanted[~nothing].norm(dim=-1)
    test.assertLess(error.max().item() if error.numel() else 0.0, TOLERANCE[format])
    # Scores of normal queries and keys are below 8: 1e-3 + 2^-18 · 8.
    apart = (lse - wanted_lse)[~nothing].abs()
    test.assertLess(apart.max().item() if apart.numel() else 0.0, 1.1e-3)
