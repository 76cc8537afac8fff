#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint as a GGUF file, by the package `gguf` of llama.cpp's authors: keys, names, shapes and block formats
are theirs, so that our reader is held to another's writer.

  tools/make_gguf.py MODEL OUT.gguf [--type q8_0] [--head TYPE] [--embedding TYPE] [--experts TYPE] [--kv-b split|joined]
                     [--parts N] [--pre NAME]

MODEL is a directory of BF16, F16 or F32 weights with tokenizer.json (`espalier make-model`). Needs numpy and gguf (from PyPI).
"""
import argparse
import json
import pathlib

import gguf
import numpy as np
from gguf import quants
from round_like_gguf import read

NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head", "shared_head.norm": "nextn.shared_head_norm"}
GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
DTYPES = {"F32": np.float32, "F16": np.float16}


def numbers(tensor):
    dtype, shape, data = tensor
    if dtype == "BF16":
        return (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(data, DTYPES[dtype]).astype(np.float32).reshape(shape)


def load(model):
    tensors = {}
    for path in sorted(model.glob("*.safetensors")):
        tensors.update({name: numbers(tensor) for name, tensor in read(path).items()})
    return tensors


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem in GLOBAL:
        return GLOBAL[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    ours = NAMES[rest]
    return f"blk.{layer}.{ours}" + ("" if ours.endswith(".bias") else ".weight")


def stack(tensors, config, kv_b):
    """Our names -> theirs, experts stacked, kv_b in the form that is asked for."""
    out, experts = {}, {}
    nope, value = config["qk_nope_head_dim"], config["v_head_dim"]
    for name, data in tensors.items():
        if ".mlp.experts." in name:
            layer, rest = name.removeprefix("model.layers.").split(".", 1)
            index, which = rest.removeprefix("mlp.experts.").split(".", 1)
            experts.setdefault((layer, which.removesuffix("_proj.weight")), {})[int(index)] = data
        elif name.endswith("kv_b_proj.weight") and kv_b == "split":
            heads = data.reshape(-1, nope + value, data.shape[1])
            block = gguf_name(name).removesuffix("attn_kv_b.weight")
            out[block + "attn_k_b.weight"] = np.ascontiguousarray(heads[:, :nope].transpose(0, 2, 1))
            out[block + "attn_v_b.weight"] = np.ascontiguousarray(heads[:, nope:])
        else:
            out[gguf_name(name)] = data
    for (layer, which), parts in experts.items():
        out[f"blk.{layer}.ffn_{which}_exps.weight"] = np.stack([parts[i] for i in range(len(parts))])
    return out


def add_config(writer, config):
    layers, extra = config["num_hidden_layers"], config.get("num_nextn_predict_layers") or 0
    arch = "deepseek2."
    latent, rope = config["kv_lora_rank"], config["qk_rope_head_dim"]
    for key, value in {
            "context_length": config["max_position_embeddings"], "embedding_length": config["hidden_size"],
            "block_count": layers + extra, "feed_forward_length": config["intermediate_size"],
            "attention.head_count": config["num_attention_heads"], "attention.head_count_kv": 1,
            "attention.q_lora_rank": config["q_lora_rank"], "attention.kv_lora_rank": latent,
            "attention.key_length": latent + rope, "attention.value_length": latent,
            "attention.key_length_mla": config["qk_nope_head_dim"] + rope,
            "attention.value_length_mla": config["v_head_dim"], "rope.dimension_count": rope,
            "vocab_size": config["vocab_size"], "leading_dense_block_count": config["first_k_dense_replace"],
            "expert_count": config["n_routed_experts"], "expert_used_count": config["num_experts_per_tok"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_group_count": config.get("n_group"), "expert_group_used_count": config.get("topk_group"),
            "expert_gating_func": 2 if config.get("scoring_func", "sigmoid") == "sigmoid" else 1,
            "nextn_predict_layers": extra or None}.items():
        if value is not None:
            writer.add_uint32(arch + key, value)
    writer.add_float32(arch + "attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    parameters = config.get("rope_parameters") or {}
    writer.add_float32(arch + "rope.freq_base", config.get("rope_theta") or parameters["rope_theta"])
    writer.add_float32(arch + "expert_weights_scale", config["routed_scaling_factor"])
    writer.add_bool(arch + "expert_weights_norm", config["norm_topk_prob"])
    scaling = config.get("rope_scaling")
    if scaling:
        writer.add_string(arch + "rope.scaling.type", "yarn")
        writer.add_float32(arch + "rope.scaling.factor", scaling["factor"])
        writer.add_uint32(arch + "rope.scaling.original_context_length", scaling["original_max_position_embeddings"])
        writer.add_float32(arch + "rope.scaling.yarn_log_multiplier", 0.1 * scaling["mscale_all_dim"])
        writer.add_float32(arch + "rope.scaling.yarn_beta_fast", scaling["beta_fast"])
        writer.add_float32(arch + "rope.scaling.yarn_beta_slow", scaling["beta_slow"])


def add_tokenizer(writer, directory, size, pre):
    """tokenizer.json as the converter writes it: added tokens are CONTROL, ids without a token UNUSED."""
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    config_path = directory / "tokenizer_config.json"
    config = json.loads(config_path.read_text()) if config_path.exists() else {}
    spelled = {id: (token, gguf.TokenType.NORMAL) for token, id in tokenizer["model"]["vocab"].items()}
    for token in tokenizer["added_tokens"]:
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        spelled[token["id"]] = (token["content"], kind)
    size = max(size, max(spelled) + 1)
    tokens = [spelled.get(id, (f"[PAD{id}]", gguf.TokenType.UNUSED)) for id in range(size)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_token_merges(merges)
    ids = {token: id for id, (token, _) in spelled.items()}
    for name in ("bos", "eos"):
        token = config.get(name + "_token")
        token = token["content"] if isinstance(token, dict) else token
        if token in ids:
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", ids[token])
    writer.add_bool("tokenizer.ggml.add_bos_token", bool(config.get("add_bos_token", False)))
    if config.get("chat_template"):
        writer.add_chat_template(config["chat_template"])


def type_of(name, data, options):
    """Norms, routers and what llama-quantize leaves alone stay F32; rows that no block divides become Q8_0."""
    if data.ndim == 1 or "ffn_gate_inp" in name:
        return gguf.GGMLQuantizationType.F32
    wanted = options.type
    if name.startswith("output.") and options.head:
        wanted = options.head
    if name.startswith("token_embd.") and options.embedding:
        wanted = options.embedding
    if "_exps." in name and options.experts:
        wanted = options.experts
    kind = gguf.GGMLQuantizationType[wanted.upper()]
    block = gguf.GGML_QUANT_SIZES[kind][0]
    return kind if data.shape[-1] % block == 0 else gguf.GGMLQuantizationType.Q8_0


def write_gguf(path, config, tokenizer, tensors, options):
    parts = options.parts
    limit = -(-len(tensors) // parts) if parts > 1 else 0
    writer = gguf.GGUFWriter(path, "deepseek2", split_max_tensors=limit)
    add_config(writer, config)
    if tokenizer is not None:
        add_tokenizer(writer, tokenizer, config["vocab_size"], options.pre)
    blocks = {}
    for name, data in tensors.items():
        kind = type_of(name, data, options)
        blocks[name] = (kind, quants.quantize(data.astype(np.float32), kind))
        writer.add_tensor(name, blocks[name][1], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return blocks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", default="q8_0")
    parser.add_argument("--head")
    parser.add_argument("--embedding")
    parser.add_argument("--experts")
    parser.add_argument("--kv-b", choices=("split", "joined"), default="split")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--pre", default="deepseek-v3")
    options = parser.parse_args()
    config = json.loads((options.model / "config.json").read_text())
    write_gguf(options.out, config, options.model, stack(load(options.model), config, options.kv_b), options)


if __name__ == "__main__":
    main()
