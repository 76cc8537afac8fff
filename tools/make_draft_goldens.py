#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/draft/goldens/: what MTP layers and EAGLE3 drafts compute, restated in plain numpy, for parity_test.cpp.

The definition is the published one (DeepSeek-V3's report, section 2.2; EAGLE-3): the draft reads the pairs of a token and the
state of the token before it, so the first pair of a text is (state of 0, token 1), and token 0 has no key. Texts begin at
their first token and have 1, 2 and 21 committed ones. A pair's rope position is its token's; scores see differences alone.

Weights are a pure function of tensor names and a seed (the C++ twin is src/checkpoint/synthetic.cpp), and so are the target's
hidden states; only configs, tokens and results are stored. All is computed in float64 on weights rounded to float32, one
node at a time, without a cache or a batch.

  make_draft_goldens.py --out tests/draft/goldens
"""
import argparse
import json
import math
import pathlib
import struct

import numpy as np

from synthetic_weights import uniform

LATENT, ROPE = 512, 64
ROUTING_MARGIN = 1e-3    # a choice of experts must be clear of rounding


class Weights:
    def __init__(self, seed):
        self.seed = seed

    def centred(self, name, shape, amplitude):
        values = (2.0 * uniform(name, self.seed, math.prod(shape)) - 1.0) * amplitude
        return values.astype(np.float32).reshape(shape).astype(np.float64)

    def matrix(self, name, n, k):
        return self.centred(name, (n, k), math.sqrt(3.0 / k))

    def embedding(self, name, vocabulary, hidden):
        return self.centred(name, (vocabulary, hidden), 1.0)

    def norm(self, name, size):
        values = 1.0 + 0.25 * (2.0 * uniform(name, self.seed, size) - 1.0)
        return values.astype(np.float32).astype(np.float64)

    def bias(self, name, size):
        return (0.1 * uniform(name, self.seed, size)).astype(np.float32).astype(np.float64)


# ---- the mathematics ------------------------------------------------------------------------------------------------

def rms_norm(x, weight, eps):
    return x / np.sqrt((x ** 2).mean(-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1 + np.exp(-x))


def rotate(x, position, theta):
    """Interleaved pairs; x: [..., 64]."""
    angle = position * theta ** (-np.arange(0, ROPE, 2) / ROPE)
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return out


class Attention:
    def __init__(self, config, weights, name, width):
        self.c, heads, q_lora = config, config["num_attention_heads"], config["q_lora_rank"]
        self.nope, self.value = config["qk_nope_head_dim"], config["v_head_dim"]
        if q_lora:
            self.q_a = weights.matrix(name + "q_a_proj.weight", q_lora, width)
            self.q_a_norm = weights.norm(name + "q_a_layernorm.weight", q_lora)
            self.q = weights.matrix(name + "q_b_proj.weight", heads * (self.nope + ROPE), q_lora)
        else:
            self.q_a, self.q = None, weights.matrix(name + "q_proj.weight", heads * (self.nope + ROPE), width)
        self.kv_a = weights.matrix(name + "kv_a_proj_with_mqa.weight", LATENT + ROPE, width)
        self.kv_a_norm = weights.norm(name + "kv_a_layernorm.weight", LATENT)
        self.kv_b = weights.matrix(name + "kv_b_proj.weight", heads * (self.nope + self.value), LATENT)
        self.o = weights.matrix(name + "o_proj.weight", config["hidden_size"], heads * self.value)

    def key(self, x, position):
        """What the cache holds of a token: [576]."""
        kv = self.kv_a @ x
        return np.concatenate([rms_norm(kv[:LATENT], self.kv_a_norm, 1e-6),
                               rotate(kv[LATENT:], position, self.c["rope_theta"])])

    def attend(self, x, position, keys):
        """keys: [n, 576], the token's own last."""
        heads = self.c["num_attention_heads"]
        q = self.q @ (rms_norm(self.q_a @ x, self.q_a_norm, 1e-6) if self.q_a is not None else x)
        q = q.reshape(heads, self.nope + ROPE)
        kv = (keys[:, :LATENT] @ self.kv_b.T).reshape(len(keys), heads, self.nope + self.value)
        scores = np.einsum("hd,nhd->hn", q[:, :self.nope], kv[..., :self.nope])
        scores = scores + rotate(q[:, self.nope:], position, self.c["rope_theta"]) @ keys[:, LATENT:].T
        scores = scores * (self.nope + ROPE) ** -0.5
        p = np.exp(scores - scores.max(-1, keepdims=True))
        return self.o @ np.einsum("hn,nhd->hd", p / p.sum(-1, keepdims=True), kv[..., self.nope:]).flatten()


class FeedForward:
    def __init__(self, weights, name, hidden, width):
        self.gate = weights.matrix(name + "gate_proj.weight", width, hidden)
        self.up = weights.matrix(name + "up_proj.weight", width, hidden)
        self.down = weights.matrix(name + "down_proj.weight", hidden, width)

    def __call__(self, x):
        return self.down @ (silu(self.gate @ x) * (self.up @ x))


class Experts:
    """Sigmoid routing with bias correction and groups, as DeepSeek-V3 has it."""

    def __init__(self, config, weights, name):
        self.c, hidden = config, config["hidden_size"]
        count, width = config["n_routed_experts"], config["moe_intermediate_size"]
        self.router = weights.matrix(name + "gate.weight", count, hidden)
        self.bias = weights.bias(name + "gate.e_score_correction_bias", count)
        self.experts = [FeedForward(weights, f"{name}experts.{e}.", hidden, width) for e in range(count)]
        self.shared = FeedForward(weights, name + "shared_experts.", hidden, width * config["n_shared_experts"])
        self.margin = math.inf

    def best(self, scores, kept):
        ordered = np.argsort(-scores, kind="stable")
        if kept < len(scores):
            self.margin = min(self.margin, scores[ordered[kept - 1]] - scores[ordered[kept]])
        return ordered[:kept]

    def __call__(self, x):
        c = self.c
        scores = 1 / (1 + np.exp(-(self.router @ x)))
        corrected = scores + self.bias
        groups = corrected.reshape(c["n_group"], -1)
        chosen = self.best(np.sort(groups, -1)[:, -2:].sum(-1), c["topk_group"])
        masked = np.full_like(groups, -math.inf)
        masked[chosen] = groups[chosen]
        kept = self.best(masked.flatten(), c["num_experts_per_tok"])
        gates = scores[kept]
        if c["norm_topk_prob"]:
            gates = gates / (gates.sum() + 1e-20)
        out = sum(g * self.experts[int(e)](x) for e, g in zip(kept, gates * c["routed_scaling_factor"]))
        return out + self.shared(x)


class Mtp:
    """x = eh_proj([enorm(embedding); hnorm(state before)]); the state is what shared_head.norm gives."""

    def __init__(self, entry):
        c, w = entry["config"], Weights(entry["seed"])
        self.c, hidden, name = c, c["hidden_size"], f"model.layers.{c['num_hidden_layers']}."
        self.embedding = w.embedding("model.embed_tokens.weight", c["vocab_size"], hidden)
        self.head = w.matrix("lm_head.weight", c["vocab_size"], hidden)
        self.enorm, self.hnorm = w.norm(name + "enorm.weight", hidden), w.norm(name + "hnorm.weight", hidden)
        self.eh_proj = w.matrix(name + "eh_proj.weight", hidden, 2 * hidden)
        self.input_norm = w.norm(name + "input_layernorm.weight", hidden)
        self.post_norm = w.norm(name + "post_attention_layernorm.weight", hidden)
        self.attention = Attention(c, w, name + "self_attn.", hidden)
        self.mlp = Experts(c, w, name + "mlp.")
        self.head_norm = w.norm(name + "shared_head.norm.weight", hidden)
        self.taps = hidden

    def combine(self, taps):
        return taps

    def enter(self, token, before):
        """(residual, what attention reads)"""
        eps = self.c["rms_norm_eps"]
        x = np.concatenate([rms_norm(self.embedding[token], self.enorm, eps), rms_norm(before, self.hnorm, eps)])
        x = self.eh_proj @ x
        return x, rms_norm(x, self.input_norm, eps)

    def leave(self, x):
        """(logits, state)"""
        n = rms_norm(x, self.head_norm, self.c["rms_norm_eps"])
        return self.head @ n, n


class Eagle3:
    """State: fc over taps, then what the layer leaves. Attention reads [norm(embedding); norm(state before)]."""

    def __init__(self, entry):
        c, w, layer = entry["config"], Weights(entry["seed"]), entry["layer"]
        self.c, hidden, self.width = c, c["hidden_size"], c["target_hidden_size"]
        self.count = len(c["eagle_config"]["eagle_aux_hidden_state_layer_ids"])
        self.taps = self.count * self.width
        self.embedding = w.embedding("embed_tokens.weight", c["vocab_size"], hidden)
        self.head = w.matrix("lm_head.weight", c["draft_vocab_size"], hidden)
        self.taps_norm = w.norm("input_norm.weight", self.taps) if c["norm_before_fc"] else None
        self.tap_norms = [w.norm(f"fc_norm.{i}.weight", self.width) for i in range(self.count)] if c["fc_norm"] else None
        self.fc = w.matrix("fc.weight", hidden, self.taps)
        self.embed_norm = w.norm(layer + "input_layernorm.weight", hidden)
        self.hidden_norm = w.norm(layer + "hidden_norm.weight", hidden)
        self.post_norm = w.norm(layer + "post_attention_layernorm.weight", hidden)
        self.attention = Attention(c, w, layer + "self_attn.", 2 * hidden)
        self.mlp = FeedForward(w, layer + "mlp.", hidden, c["intermediate_size"])
        self.norm = w.norm("norm.weight", hidden)

    def combine(self, taps):
        eps = self.c["rms_norm_eps"]
        if self.taps_norm is not None:
            taps = rms_norm(taps, self.taps_norm, eps)
        if self.tap_norms is not None:
            taps = np.concatenate([rms_norm(part, norm, eps)
                                   for part, norm in zip(np.split(taps, self.count), self.tap_norms)])
        return self.fc @ taps

    def enter(self, token, before):
        eps = self.c["rms_norm_eps"]
        normed = rms_norm(before, self.hidden_norm, eps)
        x = np.concatenate([rms_norm(self.embedding[token], self.embed_norm, eps), normed])
        return (normed if self.c["norm_before_residual"] else before), x

    def leave(self, x):
        n = rms_norm(x, self.norm, self.c["rms_norm_eps"])
        return self.head @ n, (n if self.c["norm_output"] else x)


# ---- cases ----------------------------------------------------------------------------------------------------------

LAYER = {"vocab_size": 272, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 48,
         "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "attention_bias": False,
         "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "max_position_embeddings": 4096,
         "intermediate_size": 96, "torch_dtype": "float32"}
TARGET = {**LAYER, "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_hidden_layers": 1,
          "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "moe_layer_freq": 1, "moe_intermediate_size": 48,
          "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
          "norm_topk_prob": True, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
          "tie_word_embeddings": False}


# GLM-4.7-Flash's own ratios (tools/make_goldens.py). Its MTP layer has the tensors and the order of DeepSeek-V3's: vLLM's
# glm4_moe_lite_mtp.py, enorm before hnorm into eh_proj.
GLM = {**TARGET, "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "num_attention_heads": 5,
       "num_key_value_heads": 5, "q_lora_rank": 24, "qk_nope_head_dim": 192, "v_head_dim": 256, "intermediate_size": 320,
       "n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.8,
       "rms_norm_eps": 1e-5, "rope_theta": 1000000.0}


def eagle3(ids, **changes):
    return {**LAYER, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3",
            "num_hidden_layers": 1, "target_hidden_size": 40, "draft_vocab_size": 136, "norm_before_residual": False,
            "norm_before_fc": False, "fc_norm": False, "norm_output": False,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(ids), "use_aux_hidden_state": True}, **changes}


def case(kind, config, seed, layer=""):
    return {"kind": kind, "config": config, "seed": seed, "layer": layer}


CASES = {
    "mtp": case("mtp", TARGET, 0),
    "mtp_glm": case("mtp", GLM, 2),
    "eagle3": case("eagle3", eagle3((2, 5, 7)), 1, "midlayer."),
    "eagle3_1": case("eagle3", eagle3((2, 5, 7), fc_norm=True, norm_output=True), 2, "midlayer."),
    "eagle3_norms": case("eagle3", eagle3((3, 9), norm_before_fc=True, norm_before_residual=True, q_lora_rank=None,
                                          rms_norm_eps=1e-3), 3, "layers.0."),
}
COMMITTED = [1, 2, 21]  # tokens of the texts
# Children of the root on places 1 … 3, then a level of four and one of two; no path is a prefix of the places.
PARENTS = [-1, 0, 0, 0, 2, 1, 3, 2, 6, 4]


def draft(net, committed, taps, tree):
    """The keys of committed tokens from the second on, and the logits of every node; the root follows the committed."""
    states = [net.combine(row) for row in taps]
    keys = [net.attention.key(net.enter(committed[q], states[q - 1])[1], q) for q in range(1, len(committed))]
    paths, after, depth, logits = [], [], [], []
    for parent, token in zip(PARENTS, tree):
        depth.append(0 if parent < 0 else depth[parent] + 1)
        residual, x = net.enter(token, states[-1] if parent < 0 else after[parent])
        path = ([] if parent < 0 else paths[parent]) + [net.attention.key(x, len(committed) + depth[-1])]
        paths.append(path)
        residual = residual + net.attention.attend(x, len(committed) + depth[-1], np.stack(keys + path))
        residual = residual + net.mlp(rms_norm(residual, net.post_norm, net.c["rms_norm_eps"]))
        out, state = net.leave(residual)
        logits.append(out)
        after.append(state)
    return keys, logits


def run(entry):
    net = (Mtp if entry["kind"] == "mtp" else Eagle3)(entry)
    vocabulary = entry["config"]["vocab_size"]
    pick = lambda name, count: [int(u * vocabulary) for u in uniform(name, entry["seed"], count)]
    committed, tree = pick("tokens", max(COMMITTED)), pick("tree", len(PARENTS))
    taps = Weights(entry["seed"]).centred("taps", (max(COMMITTED), net.taps), 1.0)
    arrays = []
    for count in COMMITTED:
        keys, logits = draft(net, committed[:count], taps[:count], tree)
        arrays += keys + logits
    if entry["kind"] == "mtp":
        assert net.mlp.margin > ROUTING_MARGIN, f"experts are chosen by {net.mlp.margin}"
    header = {"kind": entry["kind"], "seed": entry["seed"], "layer": entry["layer"], "texts": COMMITTED,
              "committed": committed, "tree": tree, "parents": PARENTS, "config": json.dumps(entry["config"])}
    return header, np.concatenate(arrays)


def write(path, header, numbers):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(b"EDRAFTS2" + struct.pack("<Q", len(text)) + text + numbers.astype(np.float32).tobytes())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    for name, entry in CASES.items():
        header, numbers = run(entry)
        write(out / f"{name}.golden", header, numbers)
        print(f"{name}: keys and logits up to {np.abs(numbers).max():.2f}")


if __name__ == "__main__":
    main()
