# SPDX-License-Identifier: Apache-2.0
"""MLA attention once more, in a few lines of torch and in double: what the package's results are held to."""

import torch


def cached(cache: torch.Tensor, format: str, page_tokens: int, scale: float) -> torch.Tensor:
    """Every slot of the pool as its 576 numbers: [slots, 576] in double."""
    if format != "fp8_token":
        return cache.reshape(-1, 576).double() * (scale if format == "fp8_tensor" else 1.0)
    pages = cache.view(torch.uint8)
    latent = pages[:, : 512 * page_tokens].contiguous().view(torch.float8_e4m3fn).reshape(-1, 512).double()
    rope = pages[:, 512 * page_tokens : 640 * page_tokens].contiguous().view(torch.bfloat16).reshape(-1, 64).double()
    scales = pages[:, 640 * page_tokens : 644 * page_tokens].contiguous().view(torch.float32).reshape(-1, 1).double()
    return torch.cat([latent * scales, rope], dim=1)


def slots_of(table: torch.Tensor, length: int, page_tokens: int) -> torch.Tensor:
    """Where a row's slots 0 … length - 1 lie in the pool."""
    slot = torch.arange(length)
    return table.cpu().long()[slot // page_tokens] * page_tokens + slot % page_tokens


def causal(q_len: int, length: int) -> torch.Tensor:
    """Token t sees key c < K - (q_len - 1) + t."""
    return torch.arange(length)[None, :] < length - (q_len - 1) + torch.arange(q_len)[:, None]


def tree(words: torch.Tensor, length: int, tail: int) -> torch.Tensor:
    """words: [q_len] int64. History is visible, of the last `tail` slots those whose bit is set."""
    place = torch.arange(length) - (length - tail)
    bit = (words.cpu()[:, None] >> place.clamp(0, 63)[None, :]) & 1
    return (place < 0)[None, :] | (bit != 0)


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [tokens, heads, d], keys [slots, d] or [slots, heads, d], values likewise, visible [tokens, slots]; all in double."""
    keys = keys if keys.dim() == 3 else keys[:, None].expand(-1, q.shape[1], -1)
    values = values if values.dim() == 3 else values[:, None].expand(-1, q.shape[1], -1)
    score = torch.einsum("thd,shd->ths", q.double(), keys) * scale
    score = score.masked_fill(~visible[:, None, :], float("-inf"))
    lse = torch.logsumexp(score, dim=-1)
    weight = torch.exp(score - lse.nan_to_num(neginf=0.0)[..., None])
    return torch.einsum("ths,shd->thd", weight, values), lse
