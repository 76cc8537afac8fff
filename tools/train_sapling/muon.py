# SPDX-License-Identifier: Apache-2.0
"""Muon for matrices (orthogonalised momentum), AdamW for everything else."""
import torch


def orthogonalise(g, steps=5):
    """Newton-Schulz towards the nearest semi-orthogonal matrix; g: [n, N, K]."""
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    if flip:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if flip else x


class Muon:
    """Groups matrices by shape, one batched Newton-Schulz per group. Update RMS is 0.2 * lr (as AdamW's)."""

    def __init__(self, params, momentum=0.95, weight_decay=0.1):
        self.groups, self.momentum, self.weight_decay = {}, momentum, weight_decay
        for p in params:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.state = {k: torch.zeros(sum(p.numel() for p in ps) // (k[0] * k[1]), *k, device=ps[0].device)
                      for k, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, lr):
        for shape, params in self.groups.items():
            g = torch.cat([p.grad.reshape(-1, *shape) for p in params])
            buf = self.state[shape]
            buf.lerp_(g, 1 - self.momentum)
            u = orthogonalise(g.lerp_(buf, self.momentum)).float()
            u *= -lr * 0.2 * max(shape) ** 0.5
            torch._foreach_mul_(params, 1 - lr * self.weight_decay)
            sizes = [p.numel() // (shape[0] * shape[1]) for p in params]
            torch._foreach_add_(params, [x.view_as(p) for x, p in zip(u.split(sizes), params)])


def optimisers(module, exclude=()):
    """Matrices to Muon; embeddings, heads, norms and routers to AdamW."""
    muon, adam = [], []
    for name, p in module.named_parameters():
        is_table = name.split(".")[-1] in ("embed", "router", "lm_head")
        (muon if p.ndim >= 2 and not is_table else adam).append(p)
    return Muon(muon), torch.optim.AdamW(adam, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0,
                                         fused=adam[0].is_cuda)
