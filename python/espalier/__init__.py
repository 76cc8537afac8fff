# SPDX-License-Identifier: Apache-2.0
"""Attention for MLA models on torch tensors, on the CPU and on Hopper GPUs.

`flash_mla_with_kvcache` and `get_mla_metadata` stand in for FlashMLA's, with draft trees and custom masks besides; the other
functions are the calls of include/espalier/mla.h. docs/mla_contract.md says what is computed, docs/python.md how it is called.
"""

from espalier._native import (
    CAUSAL,
    DENSE,
    FULL,
    TREE,
    Error,
    Pages,
    Rows,
    __version__,
    page_stride,
    row_splits,
)
from espalier.attention import (
    Plan,
    UpWeights,
    absorbed,
    append,
    compact,
    decode,
    decompressed,
    pack_custom_mask,
    set_threads,
)
from espalier.flash_mla import FlashMLASchedMeta, flash_mla_with_kvcache, get_mla_metadata

__all__ = [
    "CAUSAL",
    "DENSE",
    "FULL",
    "TREE",
    "Error",
    "FlashMLASchedMeta",
    "Pages",
    "Plan",
    "Rows",
    "UpWeights",
    "__version__",
    "absorbed",
    "append",
    "compact",
    "decode",
    "decompressed",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
    "pack_custom_mask",
    "page_stride",
    "row_splits",
    "set_threads",
]
