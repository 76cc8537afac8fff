# SPDX-License-Identifier: Apache-2.0
"""Batched generation with the trainer's own model, and the engine's noise.

The token at position p is argmax(logits / T + G[p]), G = -ln(-ln u), u = (x + 1/2) 2^-32, x the first word of
Philox4x32-10 with key = seed and counter = (p, vocabulary id, choice index, 0).
"""
import torch
from . import model as M

_M0, _M1, _W0, _W1, _MASK = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85, 0xFFFFFFFF


def philox(key, c0, c1, c2=0, c3=0):
    """First 32-bit word, as int64 tensors; key: (lo, hi) broadcastable. Products wrap, so mask after each shift."""
    c0, c1 = torch.broadcast_tensors(c0, c1)
    k0, k1 = key
    c0, c1 = c0.clone(), c1.clone()
    c2, c3 = torch.full_like(c0, c2), torch.full_like(c0, c3)
    for r in range(10):
        if r:
            k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
        lo0, hi0 = mul32(_M0, c0)
        lo1, hi1 = mul32(_M1, c2)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
    return c0


def mul32(a, b):
    """Low and high words of a 32 x 32 bit product without overflowing int64."""
    bl, bh = b & 0xFFFF, b >> 16
    x, y = a * bl, a * bh                      # each < 2^48
    lo = (x + ((y & 0xFFFF) << 16))            # < 2^49
    return lo & _MASK, ((y >> 16) + (lo >> 32)) & _MASK


def gumbel(seeds, positions, vocab):
    """seeds, positions: [n] int64 -> noise [n, vocab] f64."""
    ids = torch.arange(vocab, device=positions.device)
    x = philox((seeds[:, None] & _MASK, (seeds[:, None] >> 32) & _MASK), positions[:, None], ids[None, :])
    return -torch.log(-torch.log((x.double() + 0.5) * 2.0 ** -32))


@torch.no_grad()
def generate(net, prompts, count, temperature, seeds=None):
    """prompts: [B, P] of one length. temperature: float or [B] tensor; with `seeds` [B] the noise is the engine's, else
    torch's own. Returns [B, P + count]."""
    s, B, P = net.s, prompts.shape[0], prompts.shape[1]
    dev = prompts.device
    out = torch.empty(B, P + count, dtype=torch.long, device=dev)
    out[:, :P] = prompts
    caches = [torch.zeros(B, P + count, s.kv_rank + s.rope, dtype=torch.bfloat16, device=dev) for _ in net.layers]
    temp = torch.as_tensor(temperature, device=dev, dtype=torch.float32).expand(B)
    weights = freeze(net)
    pick = prefill(net, prompts, caches)
    for t in range(P, P + count):
        z = pick.float()
        if seeds is not None:
            g = gumbel(seeds, torch.full((B,), t, device=dev), s.vocab)
            z = torch.where(temp[:, None] > 1e-5, z.double() / temp.clamp_min(1e-5)[:, None].double() + g, z.double())
        elif (temp > 0).any():
            g = -torch.log(-torch.log(torch.rand_like(z).clamp_(1e-9, 1 - 1e-7)))
            z = torch.where(temp[:, None] > 1e-5, z / temp.clamp_min(1e-5)[:, None] + g, z)
        out[:, t] = z.argmax(-1)
        if t + 1 == P + count:
            break
        cos, sin = M.rope_tables(s, torch.tensor([t], device=dev))
        x = torch.nn.functional.embedding(out[:, t], weights).float()
        for layer, cache in zip(net.layers, caches):
            x = x + layer.self_attn.decode(M.rms_norm(x, layer.input_layernorm, s.eps), cos, sin, cache, t)
            x = layer.ffn(x)[0]
        pick = M.linear(M.rms_norm(x, net.norm, s.eps), weights)
    return out


def freeze(net):
    return M.bf16_round(net.embed)


def prefill(net, tokens, caches):
    s = net.s
    cos, sin = M.rope_tables(s, torch.arange(tokens.shape[1], device=tokens.device))
    x = net.embedding(tokens)
    for layer, cache in zip(net.layers, caches):
        n = M.rms_norm(x, layer.input_layernorm, s.eps)
        c, kr = layer.self_attn.latent(n, cos, sin)
        cache[:, :tokens.shape[1]] = torch.cat([c, kr], -1)
        x = x + layer.self_attn(n, cos, sin)
        x = layer.ffn(x)[0]
    return net.head(M.rms_norm(x[:, -1], net.norm, s.eps))


class rounded:
    """Inside this context weights are rounded to FP8 once instead of at every use (no gradients)."""

    def __init__(self, *modules):
        self.modules = modules

    def __enter__(self):
        self.saved = (M.fp8_round,)
        with torch.no_grad():
            cache = {}
            original = M.fp8_round

            def lookup(w):
                key = id(w)
                if key not in cache:
                    cache[key] = original(w)
                return cache[key]
            M.fp8_round = lookup
        return self

    def __exit__(self, *exc):
        (M.fp8_round,) = self.saved
