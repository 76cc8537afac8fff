# SPDX-License-Identifier: Apache-2.0
"""FlashMLA's decode call (deepseek-ai/FlashMLA, flash_mla_interface.py) on Espalier's attention: the same names, arguments and
results, extended by draft trees, custom masks and the invariant form."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Tuple, Union

from espalier import attention
from espalier._native import CAUSAL, FULL, TREE, Error, Pages, Rows

if TYPE_CHECKING:
    import torch

_INT32_MAX = 2**31 - 1


class FlashMLASchedMeta:
    """What the layers of a step share: the plan, and the rows that were made of the step's tensors."""

    def __init__(self) -> None:
        self._plan = attention.Plan()
        self._shape: Optional[Tuple[Any, ...]] = None
        self._constants: Tuple[torch.Tensor, ...] = ()
        self._tensors: Tuple[Optional[torch.Tensor], ...] = ()
        self._addresses: Tuple[int, ...] = ()
        self._rows: Optional[Rows] = None

    def _rows_of(
        self,
        q: torch.Tensor,
        block_table: torch.Tensor,
        cache_seqlens: torch.Tensor,
        tree_words: Optional[torch.Tensor],
        max_seq_len: int,
        mask: int,
    ) -> Rows:
        """The step's rows; made anew when a tensor is another than in the last call, or lies elsewhere."""
        import torch

        batch, q_len = q.shape[0], q.shape[1]
        shape = (batch, q_len, q.shape[2], q.device, max_seq_len, mask)
        if self._shape is None:
            self._shape = shape
            indptr = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * q_len
            self._constants = indptr, torch.full((batch,), mask, dtype=torch.uint8, device=q.device)
        if shape != self._shape:
            raise Error(
                "tile_scheduler_metadata is of a call with another batch, q_len, number of heads, device, length or mask: "
                "each shape needs its own get_mla_metadata()"
            )
        tensors = (block_table, cache_seqlens, tree_words)
        addresses = tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
        if self._rows is not None and addresses == self._addresses and all(a is b for a, b in zip(tensors, self._tensors)):
            return self._rows
        indptr, kinds = self._constants
        self._rows = Rows(
            indptr,
            cache_seqlens,
            block_table,
            kinds,
            token_end=batch * q_len,
            max_q_len=q_len,
            max_kv_len=max_seq_len,
            words=None if tree_words is None else tree_words.view(-1),
        )
        self._tensors, self._addresses = tensors, addresses
        return self._rows


def get_mla_metadata(*args: Any, **kwargs: Any) -> Tuple[FlashMLASchedMeta, None]:
    """An empty plan, which the first layer's call fills; FlashMLA's arguments are accepted and not needed.

    As FlashMLA's: calls may share it only while shapes, cache_seqlens and masks stay the same, so call this once per step. In a
    graph call it inside the capture: the plan is then made again in every replay."""
    return FlashMLASchedMeta(), None


def _refuse_sparse(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            error = Error(f"{name} is of sparse attention, which this library does not compute: it must be None")
            error.status = "unsupported"
            raise error


def _pages_of(k_cache: Union[torch.Tensor, Pages], is_fp8_kvcache: bool, kv_scale: float) -> Pages:
    pages = k_cache if isinstance(k_cache, Pages) else Pages(k_cache, scale=kv_scale)
    if is_fp8_kvcache != pages.format.startswith("fp8"):
        raise Error(f"is_fp8_kvcache is {is_fp8_kvcache}, but the cache is {pages.format}")
    return pages


def _length_of(block_table: torch.Tensor, pages: Pages, max_seq_len: Optional[int]) -> int:
    if attention._tensor(block_table, "block_table").dim() != 2:
        raise Error(f"block_table is {list(block_table.shape)}, wanted is [batch, entries]")
    reach = min(int(block_table.shape[1]) * pages.page_tokens, _INT32_MAX)
    return reach if max_seq_len is None else min(reach, max_seq_len)


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: Union[torch.Tensor, Pages],
    block_table: torch.Tensor,
    cache_seqlens: torch.Tensor,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: Optional[float] = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: None = None,
    attn_sink: None = None,
    extra_k_cache: None = None,
    extra_indices_in_kvcache: None = None,
    topk_length: None = None,
    extra_topk_length: None = None,
    *,
    tree_words: Optional[torch.Tensor] = None,
    custom_mask: Optional[torch.Tensor] = None,
    custom_mask_offset: Optional[torch.Tensor] = None,
    kv_scale: float = 1.0,
    q_scale: float = 1.0,
    invariant: bool = False,
    max_seq_len: Optional[int] = None,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """FlashMLA's dense decode call.

    q: [batch, q_len, heads, 576]. k_cache: [pages, page_size, 1, 576], page_size 16, 32, 64 or 128, or Pages (any format).
    block_table: int32 [batch, entries]. cache_seqlens: int32 [batch], the q_len new tokens included. head_dim_v: 512.
    causal: token i sees slot c when c < seq_len - (q_len - 1) + i. softmax_scale: 1 / sqrt(576) unless given.

    Beyond FlashMLA:
    tree_words: int64 [batch, q_len], instead of causal: slots before the q_len new ones are visible, of these slot j when bit j of
        the token's word is set (q_len up to 64).
    custom_mask, custom_mask_offset: as decode() takes them, besides causal; such a call makes its own plan.
    kv_scale, q_scale: of float8_e4m3fn caches (with is_fp8_kvcache) and queries.
    invariant: a token's bits depend on its query and visible keys alone.
    max_seq_len: no sequence is longer; the block table's reach unless given. Bounds the workspace of the invariant form.

    Returns out [batch, q_len, heads, 512] and softmax_lse [batch, heads, q_len] float32 (a transposed view). A token that sees
    nothing gives 0 and -inf."""
    _refuse_sparse(
        dict(
            indices=indices,
            attn_sink=attn_sink,
            extra_k_cache=extra_k_cache,
            extra_indices_in_kvcache=extra_indices_in_kvcache,
            topk_length=topk_length,
            extra_topk_length=extra_topk_length,
        )
    )
    if not isinstance(tile_scheduler_metadata, FlashMLASchedMeta):
        raise TypeError("tile_scheduler_metadata must come from get_mla_metadata()")
    if num_splits is not None:
        raise TypeError("num_splits must be None, as get_mla_metadata() returns it")
    if head_dim_v != 512:
        raise Error(f"head_dim_v is {head_dim_v}, 512 is possible")
    if attention._tensor(q, "q").dim() != 4:
        raise Error(f"q is {list(q.shape)}, wanted is [batch, q_len, heads, 576]")
    if tree_words is not None and (causal or custom_mask is not None):
        raise Error("tree_words say all that is visible: causal must be False and custom_mask None")
    pages = _pages_of(k_cache, is_fp8_kvcache, kv_scale)
    scale = 576**-0.5 if softmax_scale is None else softmax_scale
    length = _length_of(block_table, pages, max_seq_len)
    if custom_mask is not None or custom_mask_offset is not None:
        out, lse = attention.decode(
            q,
            pages,
            block_table,
            cache_seqlens,
            max_seq_len=length,
            scale=scale,
            causal=causal,
            custom_mask=custom_mask,
            custom_mask_offset=custom_mask_offset,
            invariant=invariant,
            q_scale=q_scale,
        )
        return out, lse.transpose(1, 2)
    attention._tensor(cache_seqlens, "cache_seqlens")
    batch, q_len, heads, columns = q.shape
    if not q.is_contiguous():
        raise Error(f"q of shape {list(q.shape)} is not contiguous: its strides are {list(q.stride())}")
    if tree_words is not None:
        if tuple(attention._tensor(tree_words, "tree_words").shape) != (batch, q_len) or not tree_words.is_contiguous():
            raise Error(f"tree_words is {list(tree_words.shape)}, wanted is [{batch}, {q_len}] in one piece")
    mask = TREE if tree_words is not None else CAUSAL if causal else FULL
    rows = tile_scheduler_metadata._rows_of(q, block_table, cache_seqlens, tree_words, length, mask)
    out, lse = attention.absorbed(
        q.view(batch * q_len, heads, columns),
        pages,
        rows,
        scale=scale,
        q_scale=q_scale,
        invariant=invariant,
        plan=tile_scheduler_metadata._plan,
    )
    return out.view(batch, q_len, heads, 512), lse.view(batch, q_len, heads).transpose(1, 2)
