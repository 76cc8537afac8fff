# SPDX-License-Identifier: Apache-2.0
"""Windows of the token stream, chosen from (seed, step) alone, so that training can resume anywhere."""
import numpy as np
import torch


class Stream:
    def __init__(self, path, device, seed=1):
        z = np.load(path)
        self.tokens = torch.from_numpy(z["tokens"].astype(np.int16)).to(device)   # vocabulary < 32768
        self.starts, self.n, self.seed = z["starts"], len(z["tokens"]), seed
        self.device = device

    def batch(self, step, rows, length, at_start=0.3):
        """[rows, length] long; a share of the rows begins at a document's start."""
        rng = np.random.default_rng([self.seed, step])
        at = rng.integers(0, self.n - length, rows)
        docs = self.starts[rng.integers(0, len(self.starts), rows)]
        at = np.where((rng.random(rows) < at_start) & (docs < self.n - length), docs, at)
        idx = torch.from_numpy(at).to(self.device)[:, None] + torch.arange(length, device=self.device)
        return self.tokens[idx].long()


def held_windows(path, kind, length, limit, device):
    """Held-out documents of one kind in windows of at most `length` tokens (each begins with a document or its next
    piece), padded with -1; returns (tokens [n, length], bytes of text per counted token sum)."""
    z = np.load(path)
    tok, starts, kinds, nbytes = z["tokens"], z["starts"], z["kinds"], z["nbytes"]
    ends = np.append(starts[1:], len(tok))
    rows, total_bytes, total = [], 0, 0
    for s, e, k, b in zip(starts, ends, kinds, nbytes):
        if k != kind:
            continue
        for a in range(s, e - 1, length - 1):      # one token overlaps: each token after BOS is predicted once
            piece = tok[a:min(a + length, e)].astype(np.int64)
            if len(piece) > 1:
                rows.append(np.pad(piece, (0, length - len(piece)), constant_values=-1))
        total_bytes += b
        total += e - s
        if total > limit:
            break
    return torch.from_numpy(np.stack(rows)).to(device), total_bytes
