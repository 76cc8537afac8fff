# SPDX-License-Identifier: Apache-2.0
"""The calls of include/espalier/mla.h on torch tensors: picks the device's context and torch's current stream, and takes
outputs and workspace from torch's allocator where the caller brings none. What a tensor must be is checked by _native.

torch is imported by the first call, not by this module."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Optional, Tuple

from espalier import _native
from espalier._native import Error, Pages, Rows

if TYPE_CHECKING:
    import torch

_contexts: dict[tuple[str, int, int], _native.Context] = {}
_making = threading.Lock()


def _context_of(device: torch.device) -> _native.Context:
    """One context per process and device: a fork has none of its parent's threads."""
    import torch

    index = torch.cuda.current_device() if device.type == "cuda" else 0
    key = (device.type, index, os.getpid())
    context = _contexts.get(key)
    if context is None:
        with _making:
            context = _contexts.get(key)
            if context is None:
                context = _native.Context(device.type, threads=torch.get_num_threads(), index=index)
                _contexts[key] = context
    return context


def set_threads(threads: int) -> None:
    """Calls on the CPU run on `threads` threads from now on (before the first call: torch.get_num_threads())."""
    context = _native.Context("cpu", threads=threads)
    with _making:
        _contexts["cpu", 0, os.getpid()] = context


def _stream_of(device: torch.device) -> int:
    import torch

    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _tensor(value: torch.Tensor, name: str) -> torch.Tensor:
    import torch

    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, is {type(value)}")
    return value


def _heads(q: torch.Tensor, columns: int) -> int:
    if _tensor(q, "q").dim() != 3:
        raise Error(f"q is {list(q.shape)}, wanted is [tokens, heads, {columns}]")
    return int(q.shape[1])


def _scratch(count: int, device: torch.device) -> Optional[torch.Tensor]:
    import torch

    return torch.empty(count, dtype=torch.uint8, device=device) if count > 0 else None


def _empty_like_query(q: torch.Tensor, *shape: int) -> torch.Tensor:
    """An output in the queries' type, bfloat16 for 8-bit ones."""
    import torch

    wide = q.dtype in (torch.float32, torch.float16)
    return torch.empty(shape, dtype=q.dtype if wide else torch.bfloat16, device=q.device)


def _outputs(
    q: torch.Tensor, out: Optional[torch.Tensor], lse: Optional[torch.Tensor], shape: Tuple[int, ...], columns: int
) -> Tuple[torch.Tensor, torch.Tensor]:
    import torch

    if out is None:
        out = _empty_like_query(q, *shape, columns)
    if lse is None:
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    return out, lse


class Plan:
    """Who computes what on the GPU, shared by the layers of a step.

    The first call that brings a plan makes it from the rows' lengths and masks; later calls must agree with it in both, in
    heads, cache format and options, and follow on the same stream. `reset()` when lengths or masks change. In a graph, the call
    that makes the plan must be captured too: reset it before the capture. On the CPU a plan is nothing."""

    def __init__(self) -> None:
        self._native: Optional[_native.Plan] = None
        self._memory: Optional[torch.Tensor] = None

    def reset(self) -> None:
        """The next call makes the plan anew."""
        if self._native is not None:
            self._native.reset()

    def _fit(self, context: _native.Context, rows: Rows, heads: int, invariant: bool, device: torch.device) -> Optional[_native.Plan]:
        count = context.plan_bytes(rows, heads, invariant=invariant)
        if count == 0:
            return None
        if self._memory is None or self._memory.numel() < count or self._memory.device != device:
            self._memory = _scratch(count, device)
            self._native = _native.Plan(self._memory)
        return self._native


def absorbed(
    q: torch.Tensor,
    pages: Pages,
    rows: Rows,
    *,
    scale: float,
    out: Optional[torch.Tensor] = None,
    lse: Optional[torch.Tensor] = None,
    invariant: bool = False,
    plan: Optional[Plan] = None,
    q_scale: float = 1.0,
    multiprocessors: int = 0,
    workspace: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Absorbed attention (decode, verification, drafts) of ragged rows over a paged cache: espalier_mla_absorbed.

    q: [rows.token_end, heads, 576]; its type must suit the cache (docs/mla_contract.md, Formats).
    scale: of the softmax. q_scale: what float8_e4m3fn queries are multiplied with.
    out: [token_end, heads, 512] float32, float16 or bfloat16; lse: [token_end, heads] float32, natural log. Made if not given.
    invariant: a token's bits depend on its query and visible keys alone (the CPU always keeps this).
    multiprocessors: how many of the GPU's the call may take; 0: all.
    workspace: uint8, at least what the call needs; taken from torch's allocator if not given.

    Returns (out, lse)."""
    heads = _heads(q, 576)
    context = _context_of(q.device)
    count = context.workspace_bytes(rows, heads, invariant=invariant)
    out, lse = _outputs(q, out, lse, (rows.token_end, heads), 512)
    if workspace is None:
        workspace = _scratch(count, q.device)
    context.absorbed(
        q,
        pages,
        rows,
        out,
        lse,
        workspace,
        plan=None if plan is None else plan._fit(context, rows, heads, invariant, q.device),
        scale=scale,
        q_scale=q_scale,
        invariant=invariant,
        multiprocessors=multiprocessors,
        stream=_stream_of(q.device),
    )
    return out, lse


class UpWeights:
    """The up-projection of a layer, bfloat16 [heads, 256, 512] (128 key rows, then 128 value rows of each head), as the device
    that holds it wants it: on the CPU a packed copy, on a GPU the tensor itself."""

    def __init__(self, rows: torch.Tensor) -> None:
        import torch

        self._data = rows
        if _tensor(rows, "rows").device.type == "cpu":
            self._data = torch.empty_like(rows, memory_format=torch.contiguous_format)
            _native.pack_up_weights(rows, self._data)


def decompressed(
    q: torch.Tensor,
    pages: Pages,
    rows: Rows,
    up: UpWeights,
    *,
    scale: float,
    out: Optional[torch.Tensor] = None,
    lse: Optional[torch.Tensor] = None,
    workspace: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Decompressed attention of causal rows (prompt segments): espalier_mla_decompressed.

    q: [rows.token_end, heads, 192], 128 nope and 64 rope columns; out: [token_end, heads, 128]; lse: [token_end, heads].
    The rest is as in absorbed(). Returns (out, lse)."""
    heads = _heads(q, 192)
    if not isinstance(up, UpWeights):
        raise TypeError(f"up must be UpWeights, is {type(up)}")
    context = _context_of(q.device)
    count = context.workspace_bytes(rows, heads, decompressed=True)
    out, lse = _outputs(q, out, lse, (rows.token_end, heads), 128)
    if workspace is None:
        workspace = _scratch(count, q.device)
    context.decompressed(q, pages, rows, up._data, out, lse, workspace, scale=scale, stream=_stream_of(q.device))
    return out, lse


def append(
    pages: Pages,
    latent: torch.Tensor,
    rope: torch.Tensor,
    slot: torch.Tensor,
    nonfinite: Optional[torch.Tensor] = None,
) -> None:
    """Quantises tokens into slots of the pool: espalier_mla_append.

    latent: float32 [tokens, 512]; rope: float32 [tokens, 64]; both may be columns of one tensor. slot: int64 [tokens], below 0:
    skipped. nonfinite: bool or uint8 [tokens], becomes true where a number was stored as 0 instead, and stays elsewhere."""
    device = _tensor(latent, "latent").device
    _context_of(device).append(pages, latent, rope, slot, nonfinite, stream=_stream_of(device))


def compact(pages: Pages, source: torch.Tensor, destination: torch.Tensor) -> None:
    """For i ascending, slot destination[i] of the pool becomes slot source[i]; both int64 [moves]: espalier_mla_compact."""
    device = _tensor(source, "source").device
    _context_of(device).compact(pages, source, destination, stream=_stream_of(device))


def decode(
    q: torch.Tensor,
    pages: Pages,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    max_seq_len: int,
    scale: float,
    causal: bool = True,
    custom_mask: Optional[torch.Tensor] = None,
    custom_mask_offset: Optional[torch.Tensor] = None,
    invariant: bool = False,
    q_scale: float = 1.0,
    out: Optional[torch.Tensor] = None,
    lse: Optional[torch.Tensor] = None,
    workspace: Optional[torch.Tensor] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """The decode call of other engines, as many tokens for every sequence: espalier_mla_decode_compat.

    q: [batch, q_len, heads, 576]; block_table: int32 [batch, entries]; seq_lens: int32 [batch], the new tokens included, none above
    max_seq_len. Token i sees slot c when c < seq_len - (q_len - 1) + i (causal), and byte custom_mask_offset[b] + i·seq_len + c of
    custom_mask (bool or uint8, one dimension; pack_custom_mask makes both) is not 0. pages: any format but fp8_token, without gaps.

    Returns out [batch, q_len, heads, 512] and lse [batch, q_len, heads]."""
    if _tensor(q, "q").dim() != 4:
        raise Error(f"q is {list(q.shape)}, wanted is [batch, q_len, heads, 576]")
    context = _context_of(q.device)
    options: dict[str, Any] = dict(
        custom_mask=custom_mask,
        custom_mask_offset=custom_mask_offset,
        max_seq_len=max_seq_len,
        causal=causal,
        invariant=invariant,
        scale=scale,
        q_scale=q_scale,
    )
    count = context.decode_workspace_bytes(q, pages, block_table, seq_lens, **options)
    out, lse = _outputs(q, out, lse, tuple(q.shape[:3]), 512)
    if workspace is None:
        workspace = _scratch(count, q.device)
    context.decode(q, pages, block_table, seq_lens, out, lse, workspace, stream=_stream_of(q.device), **options)
    return out, lse


def pack_custom_mask(mask: torch.Tensor, seq_lens: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """A mask [batch, q_len, slots] (true: visible) as decode() takes it: (custom_mask, custom_mask_offset).

    Of sequence b the first seq_lens[b] slots count, which must not be more than the mask has. Everything happens on the tensors' device, so this can be captured."""
    import torch

    if _tensor(mask, "mask").dim() != 3 or mask.dtype not in (torch.bool, torch.uint8):
        raise Error(f"mask is {mask.dtype} {list(mask.shape)}, wanted is bool or uint8 [batch, q_len, slots]")
    batch, q_len, slots = mask.shape
    if tuple(_tensor(seq_lens, "seq_lens").shape) != (batch,) or seq_lens.device != mask.device:
        raise Error(f"seq_lens is {list(seq_lens.shape)} on {seq_lens.device}, wanted is [{batch}] on {mask.device}")
    length = seq_lens.to(torch.int64).clamp(1, max(slots, 1)).unsqueeze(1)
    place = torch.arange(q_len * slots, device=mask.device).unsqueeze(0)
    source = (place // length * slots + place % length).clamp(max=max(q_len * slots - 1, 0))
    packed = mask.reshape(batch, q_len * slots).gather(1, source).reshape(-1)
    return packed, torch.arange(batch, device=mask.device) * (q_len * slots)
