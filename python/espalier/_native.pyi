# SPDX-License-Identifier: Apache-2.0
"""The extension module: mla.h on DLPack tensors, with every tensor checked. Internal, but for the names that espalier exports."""

from typing import Optional, final

import torch

__version__: str
FULL: int
CAUSAL: int
TREE: int
DENSE: int

class Error(RuntimeError):
    status: str

@final
class Pages:
    def __new__(
        cls, data: torch.Tensor, *, format: Optional[str] = None, page_tokens: int = ..., scale: float = 1.0
    ) -> Pages: ...
    @property
    def format(self) -> str: ...
    @property
    def page_tokens(self) -> int: ...
    @property
    def page_count(self) -> int: ...

@final
class Rows:
    def __new__(
        cls,
        q_indptr: torch.Tensor,
        kv_len: torch.Tensor,
        block_table: torch.Tensor,
        mask: torch.Tensor,
        *,
        token_end: int,
        max_q_len: int,
        max_kv_len: int,
        tail_len: Optional[torch.Tensor] = None,
        words: Optional[torch.Tensor] = None,
        custom_mask: Optional[torch.Tensor] = None,
        custom_mask_offset: Optional[torch.Tensor] = None,
        table_row: Optional[torch.Tensor] = None,
        global_kv_len: Optional[torch.Tensor] = None,
        dcp_world: int = 1,
        dcp_rank: int = 0,
        total_splits: int = 0,
        first_slot: int = 0,
    ) -> Rows: ...
    @property
    def rows(self) -> int: ...
    @property
    def token_end(self) -> int: ...

@final
class Plan:
    def __new__(cls, memory: torch.Tensor) -> Plan: ...
    def reset(self) -> None: ...

@final
class Context:
    def __new__(cls, device: str, *, threads: int = 0, index: int = 0) -> Context: ...
    def workspace_bytes(self, rows: Rows, heads: int, *, invariant: bool = False, decompressed: bool = False) -> int: ...
    def plan_bytes(self, rows: Rows, heads: int, *, invariant: bool = False) -> int: ...
    def absorbed(
        self,
        q: torch.Tensor,
        pages: Pages,
        rows: Rows,
        out: torch.Tensor,
        lse: Optional[torch.Tensor],
        workspace: Optional[torch.Tensor],
        *,
        plan: Optional[Plan] = None,
        scale: float,
        q_scale: float = 1.0,
        invariant: bool = False,
        multiprocessors: int = 0,
        stream: int = 0,
    ) -> None: ...
    def decompressed(
        self,
        q: torch.Tensor,
        pages: Pages,
        rows: Rows,
        up: torch.Tensor,
        out: torch.Tensor,
        lse: Optional[torch.Tensor],
        workspace: Optional[torch.Tensor],
        *,
        scale: float,
        stream: int = 0,
    ) -> None: ...
    def append(
        self,
        pages: Pages,
        latent: torch.Tensor,
        rope: torch.Tensor,
        slot: torch.Tensor,
        nonfinite: Optional[torch.Tensor] = None,
        *,
        stream: int = 0,
    ) -> None: ...
    def compact(self, pages: Pages, source: torch.Tensor, destination: torch.Tensor, *, stream: int = 0) -> None: ...
    def decode_workspace_bytes(
        self,
        q: torch.Tensor,
        pages: Pages,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        *,
        custom_mask: Optional[torch.Tensor] = None,
        custom_mask_offset: Optional[torch.Tensor] = None,
        max_seq_len: int,
        causal: bool = False,
        invariant: bool = False,
        scale: float,
        q_scale: float = 1.0,
    ) -> int: ...
    def decode(
        self,
        q: torch.Tensor,
        pages: Pages,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        out: torch.Tensor,
        lse: Optional[torch.Tensor],
        workspace: Optional[torch.Tensor],
        *,
        custom_mask: Optional[torch.Tensor] = None,
        custom_mask_offset: Optional[torch.Tensor] = None,
        max_seq_len: int,
        causal: bool = False,
        invariant: bool = False,
        scale: float,
        q_scale: float = 1.0,
        stream: int = 0,
    ) -> None: ...

def pack_up_weights(rows: torch.Tensor, packed: torch.Tensor) -> None: ...
def page_stride(format: str, page_tokens: int) -> int: ...
def row_splits(q_len: int, kv_len: int) -> int: ...
