# SPDX-License-Identifier: Apache-2.0
"""Sapling in PyTorch: a DeepSeek-V3 decoder, its MTP layer and an EAGLE3 head.

The mathematics is transformers' DeepseekV3ForCausalLM (check.py proves it). Two training tricks:
all experts are one wide FFN times mostly-zero gates, and every matrix that ships as FP8 is rounded to
its FP8 blocks in the forward pass (straight-through), so what is trained is what is shipped. Block
scales are powers of two: e4m3 times the scale is then exact in bf16, for every reader.
"""
import math
import torch
import torch.nn as nn
import torch.nn.functional as F

BLOCK = 128


def fp8_blocks(w):
    """w: [..., N, K] f32 -> (q e4m3 [..., N, K], scale f32 [..., ceil(N/128), ceil(K/128)])."""
    n, k = w.shape[-2:]
    pn, pk = -n % BLOCK, -k % BLOCK
    p = F.pad(w, (0, pk, 0, pn)) if pn or pk else w
    b = p.unflatten(-1, (-1, BLOCK)).unflatten(-3, (-1, BLOCK))            # [..., nb, 128, kb, 128]
    amax = b.abs().amax(dim=(-3, -1), keepdim=True).clamp_min(1e-12)
    scale = torch.exp2(torch.ceil(torch.log2(amax / 448.0)))
    q = (b / scale).to(torch.float8_e4m3fn)
    return q, scale, (n, k)


def unblock(b, n, k):
    return b.flatten(-4, -3).flatten(-2, -1)[..., :n, :k]


def fp8_round(w):
    """Straight-through rounding of a weight to its shipped FP8 value, as bf16 (exact)."""
    with torch.no_grad():
        q, scale, (n, k) = fp8_blocks(w.float())
        r = unblock(q.float() * scale, n, k)
    return (w + (r - w).detach()).to(torch.bfloat16)


def bf16_round(w):
    return w.to(torch.bfloat16)


COMPUTE = {"dtype": torch.bfloat16}     # check.py sets float32 to compare with transformers in float32


def linear(x, w):
    return F.linear(x.to(COMPUTE["dtype"]), w.to(COMPUTE["dtype"]))


def rms_norm(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * bf16_round(weight).float()


def rope_tables(s, positions):
    inv = 1.0 / (s.theta ** (torch.arange(0, s.rope, 2, dtype=torch.float, device=positions.device) / s.rope))
    angle = positions.float()[..., None] * inv
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Interleaved rotary embedding; x: [..., rope], cos/sin broadcast to [..., rope/2]."""
    x = x.float()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(COMPUTE["dtype"])


ATTENTION = {"backend": "pad"}     # "pad": v padded to the q width (flash); "plain": SDPA chooses


def causal_attention(q, k, v, scale):
    """q, k: [B, H, S, 192]; v: [B, H, S, 128]."""
    if ATTENTION["backend"] == "pad":
        d = v.shape[-1]
        out = F.scaled_dot_product_attention(q, k, F.pad(v, (0, q.shape[-1] - d)), is_causal=True, scale=scale)
        return out[..., :d]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale)


def unrolled_attention(q, keys, values, scale):
    """Attention of draft step k over slots: step-0 keys up to slot p-k, then one key of each later step.

    q: [B, H, S, D] of step k. keys/values: lists of k+1 tensors [B, H, S, D], step j indexed by slot.
    Slot p sees step-0 slots <= p-k and, for j = 1..k, the step-j key at slot p-k+j: exactly what a chain
    drafted from root p-k has in its cache.
    """
    k, S = len(keys) - 1, q.shape[2]
    idx = torch.arange(S, device=q.device)
    scores = torch.matmul(q, keys[0].transpose(-1, -2)).float() * scale
    scores = scores.masked_fill(idx[None, :] > idx[:, None] - k, float("-inf"))
    extra = []
    for j in range(1, k + 1):
        kj = torch.roll(keys[j], k - j, dims=2) if j < k else keys[j]
        extra.append((q.float() * kj.float()).sum(-1, keepdim=True) * scale)
    p = torch.softmax(torch.cat([scores] + extra, -1), -1)
    out = torch.matmul(p[..., :S].to(q.dtype), values[0]).float()
    for j in range(1, k + 1):
        vj = torch.roll(values[j], k - j, dims=2) if j < k else values[j]
        out = out + p[..., S + j - 1:S + j] * vj.float()
    return out.to(q.dtype)


class MLA(nn.Module):
    def __init__(self, s, width, fp8_kv_a):
        super().__init__()
        self.s, self.fp8_kv_a = s, fp8_kv_a
        def w(n, k):
            return nn.Parameter(torch.randn(n, k) * 0.02)
        self.q_a_proj = w(s.q_rank, width)
        self.q_a_layernorm = nn.Parameter(torch.ones(s.q_rank))
        self.q_b_proj = w(s.heads * (s.nope + s.rope), s.q_rank)
        self.kv_a_proj_with_mqa = w(s.kv_rank + s.rope, width)
        self.kv_a_layernorm = nn.Parameter(torch.ones(s.kv_rank))
        self.kv_b_proj = w(s.heads * (s.nope + s.v), s.kv_rank)
        self.o_proj = nn.Parameter(torch.randn(s.hidden, s.heads * s.v) * 0.02 / math.sqrt(2 * s.layers))
        self.scale = (s.nope + s.rope) ** -0.5

    def kv_a(self):
        return fp8_round(self.kv_a_proj_with_mqa) if self.fp8_kv_a else bf16_round(self.kv_a_proj_with_mqa)

    def queries(self, x, cos, sin):
        """x: [B, S, width] -> q_nope [B, S, H, 128], q_rope [B, S, H, 64]."""
        s = self.s
        q = rms_norm(linear(x, fp8_round(self.q_a_proj)), self.q_a_layernorm, s.eps)
        q = linear(q, fp8_round(self.q_b_proj)).unflatten(-1, (s.heads, s.nope + s.rope))
        return q[..., :s.nope], rotate(q[..., s.nope:], cos[..., None, :], sin[..., None, :])

    def latent(self, x, cos, sin):
        """x -> latent [B, S, 512] (normed, bf16), k_rope [B, S, 64]."""
        s = self.s
        kv = linear(x, self.kv_a())
        c = rms_norm(kv[..., :s.kv_rank], self.kv_a_layernorm, s.eps).to(COMPUTE["dtype"])
        return c, rotate(kv[..., s.kv_rank:], cos, sin)

    def qkv(self, x, cos, sin):
        s = self.s
        qn, qr = self.queries(x, cos, sin)
        c, kr = self.latent(x, cos, sin)
        kv = linear(c, fp8_round(self.kv_b_proj)).unflatten(-1, (s.heads, s.nope + s.v))
        q = torch.cat([qn, qr], -1).transpose(1, 2)
        k = torch.cat([kv[..., :s.nope], kr[..., None, :].expand(-1, -1, s.heads, -1)], -1).transpose(1, 2)
        return q, k, kv[..., s.nope:].transpose(1, 2)

    def out(self, attn):
        return linear(attn.transpose(1, 2).flatten(-2), fp8_round(self.o_proj))

    def forward(self, x, cos, sin):
        q, k, v = self.qkv(x, cos, sin)
        return self.out(causal_attention(q, k, v, self.scale))

    def decode(self, x, cos, sin, cache, length):
        """One token per sequence, absorbed form. x: [B, width]; cache: [B, capacity, 576] bf16."""
        s, x_dtype = self.s, COMPUTE["dtype"]
        qn, qr = self.queries(x[:, None], cos, sin)
        c, kr = self.latent(x[:, None], cos, sin)
        cache[:, length] = torch.cat([c, kr], -1)[:, 0]
        wb = fp8_round(self.kv_b_proj).to(x_dtype).view(s.heads, s.nope + s.v, s.kv_rank)
        ql = torch.einsum("bhd,hdc->bhc", qn[:, 0], wb[:, :s.nope])
        q = torch.cat([ql, qr[:, 0]], -1)
        past = cache[:, :length + 1]
        p = torch.softmax(torch.matmul(q, past.transpose(1, 2)).float() * self.scale, -1).to(q.dtype)
        o = torch.matmul(p, past[..., :s.kv_rank])
        o = torch.einsum("bhc,hvc->bhv", o, wb[:, s.nope:])
        return linear(o.flatten(1), fp8_round(self.o_proj))


class DenseFFN(nn.Module):
    def __init__(self, s, width):
        super().__init__()
        self.gate_proj = nn.Parameter(torch.randn(width, s.hidden) * 0.02)
        self.up_proj = nn.Parameter(torch.randn(width, s.hidden) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(s.hidden, width) * 0.02 / math.sqrt(2 * s.layers))

    def forward(self, x):
        h = F.silu(linear(x, fp8_round(self.gate_proj))) * linear(x, fp8_round(self.up_proj))
        return linear(h, fp8_round(self.down_proj)), None


class MoE(nn.Module):
    """Experts 0..E-1 routed, expert E shared; computed as one FFN of (E+1)*width times the gates."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        E, w = s.experts + 1, s.expert_width
        self.gate_proj = nn.Parameter(torch.randn(E, w, s.hidden) * 0.02)
        self.up_proj = nn.Parameter(torch.randn(E, w, s.hidden) * 0.02)
        self.down_proj = nn.Parameter(torch.randn(E, s.hidden, w) * 0.02 / math.sqrt(2 * s.layers))
        self.router = nn.Parameter(torch.randn(s.experts, s.hidden) * 0.02)
        self.register_buffer("bias", torch.zeros(s.experts))

    def gates(self, x):
        """[..., E] f32: sigmoid scores of the top-k by biased score, normalised and scaled."""
        s = self.s
        scores = F.linear(x.float(), bf16_round(self.router).float()).sigmoid()
        chosen = (scores + self.bias).topk(s.top_k, dim=-1).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        g = scores * mask
        return g / (g.sum(-1, keepdim=True) + 1e-20) * s.routed_scale, mask

    def forward(self, x):
        g, mask = self.gates(x)
        load = mask.flatten(0, -2).mean(0)
        g = torch.cat([g, torch.ones_like(g[..., :1])], -1).to(COMPUTE["dtype"])
        h = F.silu(linear(x, fp8_round(self.gate_proj).flatten(0, 1))) * linear(x, fp8_round(self.up_proj).flatten(0, 1))
        h = (h.unflatten(-1, (self.s.experts + 1, -1)) * g[..., None]).flatten(-2)
        return linear(h, fp8_round(self.down_proj).transpose(0, 1).flatten(1)), load


class Layer(nn.Module):
    def __init__(self, s, moe):
        super().__init__()
        self.s = s
        self.input_layernorm = nn.Parameter(torch.ones(s.hidden))
        self.post_attention_layernorm = nn.Parameter(torch.ones(s.hidden))
        self.self_attn = MLA(s, s.hidden, fp8_kv_a=False)
        self.mlp = MoE(s) if moe else DenseFFN(s, s.intermediate)

    def ffn(self, x):
        y, load = self.mlp(rms_norm(x, self.post_attention_layernorm, self.s.eps).to(COMPUTE["dtype"]))
        return x + y, load

    def forward(self, x, cos, sin):
        x = x + self.self_attn(rms_norm(x, self.input_layernorm, self.s.eps), cos, sin)
        return self.ffn(x)


class MTP(nn.Module):
    """DeepSeek's multi-token prediction layer. Slot q ≥ 1 holds f(h_{q-1}, t_q) at rope position q; there is no slot 0."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.enorm = nn.Parameter(torch.ones(s.hidden))
        self.hnorm = nn.Parameter(torch.ones(s.hidden))
        self.eh_proj = nn.Parameter(torch.randn(s.hidden, 2 * s.hidden) * 0.02)
        self.layer = Layer(s, moe=True)
        self.norm = nn.Parameter(torch.ones(s.hidden))          # shared_head.norm

    def inputs(self, emb, h):
        e = rms_norm(emb, self.enorm, self.s.eps)
        return linear(torch.cat([e, rms_norm(h, self.hnorm, self.s.eps)], -1), bf16_round(self.eh_proj)).float()

    def first(self, h):
        """State that step 0 reads, from the target's normed hidden [B, S, d]."""
        return h

    def step(self, emb, h, cos, sin, keys, values):
        """One unrolled step over slots 1, 2, …: emb of token q and the state h of position q-1. Appends to keys/values."""
        x = self.inputs(emb, h)
        L = self.layer
        q, k, v = L.self_attn.qkv(rms_norm(x, L.input_layernorm, self.s.eps), cos, sin)
        keys.append(k)
        values.append(v)
        if len(keys) == 1:
            a = causal_attention(q, k, v, L.self_attn.scale)
        else:
            a = unrolled_attention(q, keys, values, L.self_attn.scale)
        x, load = L.ffn(x + L.self_attn.out(a))
        n = rms_norm(x, self.norm, self.s.eps)
        return n, n, load         # (for logits, for the next step)


class Eagle3(nn.Module):
    """EAGLE3 draft: fc over three taps, one MLA layer over [embedding; state], reduced vocabulary."""

    def __init__(self, s):
        super().__init__()
        self.s = s
        self.fc = nn.Parameter(torch.randn(s.hidden, 3 * s.hidden) * 0.02)
        self.input_layernorm = nn.Parameter(torch.ones(s.hidden))
        self.hidden_norm = nn.Parameter(torch.ones(s.hidden))
        self.post_attention_layernorm = nn.Parameter(torch.ones(s.hidden))
        self.self_attn = MLA(s, 2 * s.hidden, fp8_kv_a=True)
        self.mlp = DenseFFN(s, s.draft_intermediate)
        self.norm = nn.Parameter(torch.ones(s.hidden))
        self.lm_head = nn.Parameter(torch.randn(s.draft_vocab, s.hidden) * 0.02)
        self.register_buffer("d2t", torch.zeros(s.draft_vocab, dtype=torch.long))

    def draft_ids(self):
        return torch.arange(self.s.draft_vocab, device=self.d2t.device) + self.d2t

    def first(self, taps):
        """taps: [B, S, 3d] residual streams -> state [B, S, d]."""
        return linear(taps, fp8_round(self.fc)).float()

    def step(self, emb, h, cos, sin, keys, values):
        s = self.s
        x = torch.cat([rms_norm(emb, self.input_layernorm, s.eps), rms_norm(h, self.hidden_norm, s.eps)], -1)
        q, k, v = self.self_attn.qkv(x, cos, sin)
        keys.append(k)
        values.append(v)
        if len(keys) == 1:
            a = causal_attention(q, k, v, self.self_attn.scale)
        else:
            a = unrolled_attention(q, keys, values, self.self_attn.scale)
        x = h + self.self_attn.out(a)
        x = x + self.mlp(rms_norm(x, self.post_attention_layernorm, s.eps))[0]
        return rms_norm(x, self.norm, s.eps), x, None

    def logits(self, n):
        return linear(n, bf16_round(self.lm_head)).float()


def slots(emb, state, cos, sin):
    """Inputs of slots 1, 2, …: token q with the state of position q-1. Position 0 has no state before it, so no slot."""
    return emb[:, 1:], state[:, :-1], cos[1:], sin[1:]


def unroll(draft, tokens_emb, first_state, cos, sin, steps):
    """Runs `steps` draft steps over every root of a batch at once. Yields the normed state per step, [B, S-1, d].

    Index i is slot i+1. Step k's output there predicts token i+2, for the chain whose root is slot i+1-k; indices below k
    have no root and mean nothing.
    """
    emb, h, cos, sin = slots(tokens_emb, first_state, cos, sin)
    keys, values = [], []
    for _ in range(steps):
        n, state, _ = draft.step(emb, h, cos, sin, keys, values)
        yield n
        h = F.pad(state, (0, 0, 1, 0))[:, :-1]


class Sapling(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        self.embed = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.02)
        self.layers = nn.ModuleList(Layer(s, moe=i >= s.dense_layers) for i in range(s.layers))
        self.norm = nn.Parameter(torch.ones(s.hidden))
        self.mtp = MTP(s)

    def embedding(self, tokens):
        return F.embedding(tokens, bf16_round(self.embed)).float()

    def head(self, n):
        return linear(n, bf16_round(self.embed))

    def hidden(self, tokens, taps=()):
        """tokens: [B, S] -> (normed hidden [B, S, d] f32, taps [B, S, 3d] or None, loads, (cos, sin), emb)."""
        pos = torch.arange(tokens.shape[1], device=tokens.device)
        cos, sin = rope_tables(self.s, pos)
        emb = x = self.embedding(tokens)
        kept, loads = [], []
        for i, layer in enumerate(self.layers):
            if i in taps:
                kept.append(x)
            x, load = layer(x, cos, sin)
            if load is not None:
                loads.append(load)
        n = rms_norm(x, self.norm, self.s.eps)
        return n, torch.cat(kept, -1) if taps else None, loads, (cos, sin), emb

    def moe_layers(self):
        return [l.mlp for l in self.layers if isinstance(l.mlp, MoE)] + [self.mtp.layer.mlp]
