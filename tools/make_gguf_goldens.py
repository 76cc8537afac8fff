#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/model/gguf/tiny.gguf and tiny.logits: a random deepseek2 model of two layers, written by the package
`gguf` of llama.cpp's authors with several formats side by side, and the logits of eight tokens by a forward pass in f32 over
the numbers that the same package reads from the file's blocks (gguf 0.19.0, numpy 2.4.6). The pass is restated here from
the published modeling_deepseek.py: nothing of it is ours.

tiny.logits: u32 number of tokens, u32 vocabulary, the tokens as i32, the logits as f32.
"""
import pathlib
import struct
import types

import gguf
import numpy as np
from gguf import quants
from make_gguf import stack, write_gguf

CONFIG = {
    "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32,
    "num_attention_heads": 1, "q_lora_rank": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128,
    "v_head_dim": 128, "vocab_size": 320, "max_position_embeddings": 4096, "first_k_dense_replace": 1,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 2, "topk_group": 1,
    "norm_topk_prob": True, "routed_scaling_factor": 1.8, "scoring_func": "sigmoid", "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0}
TOKENS = [0, 17, 300, 5, 5, 44, 100, 7]


def random_tensors(random):
    c, tensors = CONFIG, {}

    def matrix(name, rows, columns):
        tensors[name + ".weight"] = random.standard_normal((rows, columns)).astype(np.float32) / np.sqrt(columns)

    def norm(name, size):
        tensors[name + ".weight"] = (1 + 0.1 * random.standard_normal(size)).astype(np.float32)

    def feed_forward(name, width):
        matrix(name + "gate_proj", width, c["hidden_size"])
        matrix(name + "up_proj", width, c["hidden_size"])
        matrix(name + "down_proj", c["hidden_size"], width)

    matrix("model.embed_tokens", c["vocab_size"], c["hidden_size"])
    for layer in range(c["num_hidden_layers"]):
        name = f"model.layers.{layer}."
        norm(name + "input_layernorm", c["hidden_size"])
        matrix(name + "self_attn.q_a_proj", c["q_lora_rank"], c["hidden_size"])
        norm(name + "self_attn.q_a_layernorm", c["q_lora_rank"])
        matrix(name + "self_attn.q_b_proj", 192, c["q_lora_rank"])
        matrix(name + "self_attn.kv_a_proj_with_mqa", 576, c["hidden_size"])
        norm(name + "self_attn.kv_a_layernorm", 512)
        matrix(name + "self_attn.kv_b_proj", 256, 512)
        matrix(name + "self_attn.o_proj", c["hidden_size"], 128)
        norm(name + "post_attention_layernorm", c["hidden_size"])
        if layer < c["first_k_dense_replace"]:
            feed_forward(name + "mlp.", c["intermediate_size"])
            continue
        matrix(name + "mlp.gate", c["n_routed_experts"], c["hidden_size"])
        tensors[name + "mlp.gate.e_score_correction_bias"] = 0.1 * random.standard_normal(4).astype(np.float32)
        for expert in range(c["n_routed_experts"]):
            feed_forward(f"{name}mlp.experts.{expert}.", c["moe_intermediate_size"])
        feed_forward(name + "mlp.shared_experts.", c["moe_intermediate_size"])
    norm("model.norm", c["hidden_size"])
    matrix("lm_head", c["vocab_size"], c["hidden_size"])
    return tensors


def rms_norm(x, weight, epsilon=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(epsilon)) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x):
    """[tokens, 64]: pairs side by side turn by position · theta^(-2i/64)."""
    angle = np.arange(len(x))[:, None] * CONFIG["rope_theta"] ** (-np.arange(0, 64, 2) / 64)
    pairs = (x[:, ::2] + 1j * x[:, 1::2]) * np.exp(1j * angle)
    return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape).astype(np.float32)


def attend(x, w, name):
    q = rms_norm(x @ w[name + "attn_q_a.weight"].T, w[name + "attn_q_a_norm.weight"]) @ w[name + "attn_q_b.weight"].T
    kv = x @ w[name + "attn_kv_a_mqa.weight"].T
    latent, key_rope = rms_norm(kv[:, :512], w[name + "attn_kv_a_norm.weight"]), rotate(kv[:, 512:])
    keys = np.concatenate([latent @ w[name + "attn_k_b.weight"][0], key_rope], 1)
    values = latent @ w[name + "attn_v_b.weight"][0].T
    scores = np.concatenate([q[:, :128], rotate(q[:, 128:])], 1) @ keys.T / np.sqrt(np.float32(192))
    scores[np.triu_indices(len(x), 1)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)) @ values @ w[name + "attn_output.weight"].T


def gated(x, gate, up, down):
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def route(x, w, name):
    """Scores of the chosen experts [tokens, experts], 0 elsewhere."""
    scores = 1 / (1 + np.exp(-(x @ w[name + "ffn_gate_inp.weight"].T)))
    biased = (scores + w[name + "exp_probs_b.bias"]).reshape(len(x), CONFIG["n_group"], -1)
    best = np.sort(biased, -1)[..., -2:].sum(-1).argmax(-1)  # the group of the two best
    allowed = np.full_like(biased, -np.inf)
    allowed[np.arange(len(x)), best] = biased[np.arange(len(x)), best]
    chosen = np.argsort(-allowed.reshape(len(x), -1), kind="stable")[:, : CONFIG["num_experts_per_tok"]]
    weights = np.zeros_like(scores)
    np.put_along_axis(weights, chosen, np.take_along_axis(scores, chosen, 1), 1)
    return weights / weights.sum(-1, keepdims=True) * np.float32(CONFIG["routed_scaling_factor"])


def forward(w):
    x = w["token_embd.weight"][TOKENS]
    for layer in range(CONFIG["num_hidden_layers"]):
        name = f"blk.{layer}."
        x = x + attend(rms_norm(x, w[name + "attn_norm.weight"]), w, name)
        h = rms_norm(x, w[name + "ffn_norm.weight"])
        if layer < CONFIG["first_k_dense_replace"]:
            x = x + gated(h, *(w[f"{name}ffn_{part}.weight"] for part in ("gate", "up", "down")))
            continue
        weights = route(h, w, name)
        for expert in range(CONFIG["n_routed_experts"]):
            parts = (w[f"{name}ffn_{part}_exps.weight"][expert] for part in ("gate", "up", "down"))
            x = x + weights[:, expert : expert + 1] * gated(h, *parts)
        x = x + gated(h, *(w[f"{name}ffn_{part}_shexp.weight"] for part in ("gate", "up", "down")))
    return rms_norm(x, w["output_norm.weight"]) @ w["output.weight"].T


def main():
    folder = pathlib.Path(__file__).parent.parent / "tests/model/gguf"
    folder.mkdir(parents=True, exist_ok=True)
    tensors = stack(random_tensors(np.random.default_rng(47)), CONFIG, "split")
    options = types.SimpleNamespace(type="q4_0", head="q8_0", embedding="q5_0", experts="q8_0", parts=1, pre="glm4")
    blocks = write_gguf(folder / "tiny.gguf", CONFIG, None, tensors, options)
    numbers = {name: quants.dequantize(data, kind).reshape(tensors[name].shape).astype(np.float32)
               for name, (kind, data) in blocks.items()}
    logits = forward(numbers).astype(np.float32)
    (folder / "tiny.logits").write_bytes(struct.pack("<II", len(TOKENS), CONFIG["vocab_size"]) +
                                         np.array(TOKENS, np.int32).tobytes() + logits.tobytes())
    assert gguf.GGUFReader(folder / "tiny.gguf").get_field("deepseek2.block_count").contents() == 2


if __name__ == "__main__":
    main()
