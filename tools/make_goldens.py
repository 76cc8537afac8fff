#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/model/goldens/: what Hugging Face transformers computes for tiny random models, for parity_test.cpp.

Pinned: torch==2.13.0 (CPU), compressed-tensors (any), transformers==5.23.0 (its DeepseekV2 has YaRN's mscale² in the softmax scale; asserted
below), safetensors, numpy. The tests need none of them. Weights are a pure function of tensor names and a seed
(the C++ twin is src/checkpoint/synthetic.cpp), so only configs, prompts and results are stored.

  make_goldens.py --out tests/model/goldens        all cases with the seeds in CASES (a few minutes, one thread)
  make_goldens.py --search 400 [CASE…]             the first seed whose choices are clear of rounding, per case
"""
import argparse
import json
import math
import pathlib
import struct
import sys
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from synthetic_weights import mixed, uniform

PINNED = {"torch": "2.13.0", "transformers": "5.23.0"}
FP8_BLOCK = 128
CONTINUATION = 64
# Matrices that our writer of quantized models leaves in bf16.
KEPT = ("lm_head.weight", "mlp.gate.weight", "kv_b_proj.weight", "weights_proj.weight")
DISTINCT_TOKENS = 12     # random models like to repeat themselves; a continuation must say at least this many tokens
# A choice must be clear of rounding. Two f32 runs differ by ~1e-6 relative; these leave a factor of 100 and more.
TOKEN_MARGIN = 1e-3      # (best − second) / max|logit|, at each greedy step
ROUTING_MARGIN = 1e-4    # (last kept − first dropped) / last kept score, experts and groups
# (last chosen − first left) / max|score| of an indexer's keys: where it is smaller, correct programs may choose others.
INDEX_MARGIN = 3e-6
# In 16 bits correct programs may choose other experts, which says nothing about their rounding: a case counts only if
# its choices stay the same in this many runs with noise as large as the largest error of torch's bf16 router logits.
NOISE_TRIALS = 64


# ---- weights: a pure function of (name, seed, index) ----------------------------------------------------------------

def f32(values, shape):
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def centred(name, seed, shape, amplitude):
    return f32((2.0 * uniform(name, seed, math.prod(shape)) - 1.0) * amplitude, shape)


def stored_dtype(dtype):
    return {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.bfloat16}[dtype]


def fp8_matrix(name, seed, shape):
    """Codes [n, k] e4m3 times one scale per 128 × 128 block, widened: f32(code) · scale, one f32 rounding."""
    n, k = shape
    codes = centred(name, seed, shape, 448.0).to(torch.float8_e4m3fn).to(torch.float32)
    blocks = (-(-n // FP8_BLOCK), -(-k // FP8_BLOCK))
    amplitude = math.sqrt(3.0 / k) / 448.0
    scale = f32(amplitude * (0.5 + uniform(name + "_scale_inv", seed, math.prod(blocks))), blocks)
    scale = scale.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return codes * scale[:n, :k]


def group_scales(name, seed, shape, group, largest):
    """bf16 weight_scale [n, groups], one for every `group` inputs (0: all), widened and repeated to [n, k]."""
    n, k = shape
    groups = -(-k // group) if group else 1
    scale = f32(math.sqrt(3.0 / k) / largest * (0.5 + uniform(name + "_scale", seed, n * groups)), (n, groups))
    scale = scale.to(torch.bfloat16).to(torch.float32)
    return scale.repeat_interleave(group or k, 1)[:, :k]


def packed_matrix(name, seed, shape, bits, group):
    """compressed-tensors pack-quantized: int32 words [n, ⌈k / (32 / bits)⌉], the first code lowest, codes plus half
    their range; taken apart by the library itself."""
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    n, k = shape
    words = -(-k * bits // 32)
    codes = (mixed(name + "_packed", seed, n * words) >> np.uint64(32)).astype(np.uint32).view(np.int32)
    codes = unpack_from_int32(torch.from_numpy(codes.copy()).reshape(n, words), bits, torch.Size(shape))
    return codes.to(torch.float32) * group_scales(name, seed, shape, group, 1 << (bits - 1))


def int8_matrix(name, seed, shape, group):
    """compressed-tensors int-quantized."""
    codes = (mixed(name, seed, math.prod(shape)) >> np.uint64(56)).astype(np.uint8).view(np.int8)
    return torch.from_numpy(codes.astype(np.float32)).reshape(shape) * group_scales(name, seed, shape, group, 128)


def nvfp4_matrix(name, seed, shape):
    """ModelOpt: bytes of two e2m1 codes, the first in the low half; e4m3 for 16 inputs, f32 for the matrix."""
    n, k = shape
    byte = (mixed(name, seed, n * k // 2) >> np.uint64(56)).astype(np.uint8)
    codes = np.stack([byte & 15, byte >> 4], 1).reshape(shape)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)[codes & 7] * np.where(codes & 8, np.float32(-1), 1)
    scale = f32(0.5 + uniform(name + "_scale", seed, n * k // 16), (n, k // 16)).to(torch.float8_e4m3fn)
    own = f32(math.sqrt(3.0 / k) / 6 * (0.5 + uniform(name + "_scale_2", seed, 1)), (1,))
    return torch.from_numpy(values.astype(np.float32)) * (scale.float() * own).repeat_interleave(16, 1)


def quantized_matrix(name, seed, shape, how):
    """A projection as quantization_config `how` stores it, widened: f32(code) · scale, one f32 rounding."""
    if how["quant_method"] == "modelopt":
        return nvfp4_matrix(name, seed, shape)
    weights = how["config_groups"]["group_0"]["weights"]
    group = weights["group_size"] or 0
    if how["format"] == "int-quantized":
        return int8_matrix(name, seed, shape, group)
    return packed_matrix(name, seed, shape, weights["num_bits"], group)


def tensor(name, seed, shape, dtype, how=None):
    """The tensor as stored, widened to f32."""
    if name.endswith("e_score_correction_bias"):
        return f32(0.1 * uniform(name, seed, math.prod(shape)), shape)
    if name.endswith("norm.bias"):
        value = centred(name, seed, shape, 0.25)
    elif name.endswith("norm.weight"):
        value = f32(1.0 + 0.25 * (2.0 * uniform(name, seed, math.prod(shape)) - 1.0), shape)
    elif name.endswith("embed_tokens.weight"):
        value = centred(name, seed, shape, 1.0)
    elif dtype == "fp8" and not name.endswith(("lm_head.weight", "mlp.gate.weight", "weights_proj.weight")):
        return fp8_matrix(name, seed, shape)
    elif how and how["quant_method"] != "fp8" and not name.endswith(KEPT):
        return quantized_matrix(name, seed, shape, how)
    else:
        value = centred(name, seed, shape, math.sqrt(3.0 / shape[-1]))
    return value.to(stored_dtype(dtype)).to(torch.float32)


def indexes(config, layer):
    """True if the layer has an indexer of its own."""
    return "index_topk" in config and config.get("indexer_types", ["full"] * (layer + 1))[layer] == "full"


def shapes_of(config):
    """Published tensor names → shapes. An MTP layer is no part of the reference's forward pass and is left out."""
    hidden, heads, q_lora = config["hidden_size"], config["num_attention_heads"], config["q_lora_rank"]
    nope, value, latent = config["qk_nope_head_dim"], config["v_head_dim"], config["kv_lora_rank"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)

    def feed_forward(prefix, width):
        shapes[prefix + "gate_proj.weight"] = (width, hidden)
        shapes[prefix + "up_proj.weight"] = (width, hidden)
        shapes[prefix + "down_proj.weight"] = (hidden, width)

    for layer in range(config["num_hidden_layers"]):
        base = f"model.layers.{layer}."
        shapes[base + "input_layernorm.weight"] = (hidden,)
        shapes[base + "post_attention_layernorm.weight"] = (hidden,)
        attention = base + "self_attn."
        if q_lora:
            shapes[attention + "q_a_proj.weight"] = (q_lora, hidden)
            shapes[attention + "q_a_layernorm.weight"] = (q_lora,)
            shapes[attention + "q_b_proj.weight"] = (heads * (nope + 64), q_lora)
        else:
            shapes[attention + "q_proj.weight"] = (heads * (nope + 64), hidden)
        shapes[attention + "kv_a_proj_with_mqa.weight"] = (latent + 64, hidden)
        shapes[attention + "kv_a_layernorm.weight"] = (latent,)
        shapes[attention + "kv_b_proj.weight"] = (heads * (nope + value), latent)
        shapes[attention + "o_proj.weight"] = (hidden, heads * value)
        if indexes(config, layer):
            width, indexer = config["index_head_dim"], attention + "indexer."
            shapes[indexer + "wq_b.weight"] = (config["index_n_heads"] * width, q_lora)
            shapes[indexer + "wk.weight"] = (width, hidden)
            shapes[indexer + "k_norm.weight"] = shapes[indexer + "k_norm.bias"] = (width,)
            shapes[indexer + "weights_proj.weight"] = (config["index_n_heads"], hidden)
        if layer < config["first_k_dense_replace"]:
            feed_forward(base + "mlp.", config["intermediate_size"])
            continue
        experts, width = config["n_routed_experts"], config["moe_intermediate_size"]
        shapes[base + "mlp.gate.weight"] = (experts, hidden)
        if config.get("topk_method") == "noaux_tc":
            shapes[base + "mlp.gate.e_score_correction_bias"] = (experts,)
        for expert in range(experts):
            feed_forward(f"{base}mlp.experts.{expert}.", width)
        feed_forward(base + "mlp.shared_experts.", width * config["n_shared_experts"])
    return shapes


# ---- cases -------------------------------------------------------------------------------------------------------

def yarn(factor=40, original=4096, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1):
    return {"type": "yarn", "factor": factor, "original_max_position_embeddings": original, "mscale": mscale,
            "mscale_all_dim": mscale_all_dim, "beta_fast": beta_fast, "beta_slow": beta_slow}


def base_config(**changes):
    config = {
        "bos_token_id": 0, "eos_token_id": 1, "vocab_size": 272, "hidden_size": 64, "num_hidden_layers": 3,
        "num_attention_heads": 2, "q_lora_rank": None, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "attention_bias": False, "hidden_act": "silu",
        "intermediate_size": 96, "moe_intermediate_size": 48, "first_k_dense_replace": 1, "moe_layer_freq": 1,
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3, "rms_norm_eps": 1e-6,
        "rope_theta": 10000, "rope_scaling": None, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    }
    config.update(changes)
    config["num_key_value_heads"] = config["num_attention_heads"]
    return config


def v2(**changes):
    return base_config(**{
        "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "scoring_func": "softmax",
        "topk_method": "greedy", "n_group": 1, "topk_group": 1, "norm_topk_prob": False,
        "routed_scaling_factor": 1.0, "n_shared_experts": 2, **changes})


def v3(**changes):
    return base_config(**{
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "n_group": 4, "topk_group": 2, "n_routed_experts": 16, "num_experts_per_tok": 4,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "q_lora_rank": 48, "num_nextn_predict_layers": 0,
        **changes})


def glm(**changes):
    """GLM-4.7-Flash with its own ratios: 20 heads, q_lora 3/8, dense 5, experts 3/4 of hidden, 4 of them and one shared."""
    return v3(**{
        "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "n_group": 1, "topk_group": 1,
        "num_attention_heads": 5, "q_lora_rank": 24, "qk_nope_head_dim": 192, "v_head_dim": 256,
        "intermediate_size": 320, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5, "rope_theta": 1000000,
        "partial_rotary_factor": 1.0, **changes})


def mistral(scaled=64, **changes):
    """Mistral Small 4 with its own latents and heads; queries grow from position `scaled` on."""
    return base_config(**{
        "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "q_lora_rank": 48, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "first_k_dense_replace": 0, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "rope_scaling": None, "rope_theta": None,
        "rope_parameters": {**yarn(factor=128.0, original=scaled), "rope_type": "yarn", "rope_theta": 10000.0,
                            "llama_4_scaling_beta": 0.1, "partial_rotary_factor": 0.5}, **changes})


def v32(**changes):
    """DeepSeek-V3.2; 32 keys are chosen. With 8 index heads few scores are 0, where the order is nobody's but ours."""
    return v3(**{
        "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "num_hidden_layers": 2,
        "num_attention_heads": 4, "index_n_heads": 8, "index_head_dim": 128, "index_topk": 32, **changes})


def glm5(**changes):
    """GLM-5.2: q_lora a third of hidden, a layer that shares, rope without scaling."""
    return glm(**{
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "num_attention_heads": 4,
        "intermediate_size": 128, "routed_scaling_factor": 2.5, "rope_theta": 8000000, "index_n_heads": 16,
        "index_head_dim": 128, "index_topk": 32, "indexer_rope_interleave": True,
        "indexer_types": ["full", "shared", "full"], **changes})


FP8 = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}


def integers(bits, group, form="pack-quantized"):
    """compressed-tensors, as Kimi K2.5 writes it."""
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "group" if group else "channel",
               "group_size": group or None, "dynamic": False, "actorder": None, "observer": "minmax"}
    return {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
            "ignore": ["lm_head", "re:.*kv_b_proj$", "re:.*mlp\\.gate$"], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"input_activations": None, "output_activations": None,
                                          "targets": ["Linear"], "weights": weights}}}


NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16, "ignore": ["lm_head", "*kv_b_proj"]}
QUANTIZED = dict(hidden_size=160, q_lora_rank=96, intermediate_size=224, num_hidden_layers=2, moe_intermediate_size=96,
                 n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2)
KIMI = v3(model_type="kimi_k2", n_group=1, topk_group=1, routed_scaling_factor=2.827, rope_theta=50000.0,
          rope_scaling=yarn(factor=32.0, beta_fast=1.0, beta_slow=1.0), n_routed_experts=12, vocab_size=320)
# DeepSeek-VL2's largest: V3's router in a model of V2's class.
VL2 = v3(architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", n_group=1, topk_group=1, q_lora_rank=None,
         n_shared_experts=2, routed_scaling_factor=2.0, use_mla=True)
V2_GROUPS = dict(q_lora_rank=48, topk_method="group_limited_greedy", n_group=4, topk_group=2, n_routed_experts=16,
                 num_experts_per_tok=4, routed_scaling_factor=16.0)
# n_routed_experts 0 with every layer dense is how a config says "no experts".
DENSE = dict(num_hidden_layers=2, first_k_dense_replace=2, n_routed_experts=0, n_shared_experts=0)
MISTRAL_DENSE = dict(num_hidden_layers=2, first_k_dense_replace=2)
GLM_DENSE = dict(**DENSE, mlp_layer_types=["dense", "dense"])


def case(config, seed, dtype="f32", prompt=40, prefix=""):
    return {"config": config, "seed": seed, "dtype": dtype, "prompt": prompt, "prefix": prefix}


CASES = {
    "v2_greedy": case(v2(), 0),
    "v2_groups_yarn": case(v2(**V2_GROUPS, rope_scaling=yarn(mscale=0.707, mscale_all_dim=0.707)), 1),
    # mscale ≠ mscale_all_dim: cos and sin get a factor of their own. No dense layer.
    "v2_yarn_magnitude": case(v2(first_k_dense_replace=0, num_hidden_layers=2,
                                 rope_scaling=yarn(original=32, mscale=1.0, mscale_all_dim=0.707)), 0),
    "v2_dense": case(v2(**DENSE), 1),
    # 600 tokens: positions below 576 take the decompressed form, the others the absorbed one.
    "v3_yarn_long": case(v3(num_attention_heads=4, rope_scaling=yarn()), 2, prompt=600),
    "v3_yarn_short": case(v3(rope_scaling=yarn(original=64), num_nextn_predict_layers=1), 2),
    # A large epsilon shows that q_a and kv_a norms keep 1e-6 whatever the config says.
    "v3_no_q_lora_tied": case(v3(q_lora_rank=None, first_k_dense_replace=0, num_hidden_layers=2, num_attention_heads=1,
                                 norm_topk_prob=False, rms_norm_eps=1e-3, tie_word_embeddings=True), 0),
    "kimi_k2": case(KIMI, 1),
    "kimi_nested": case(KIMI, 1, prefix="language_model."),
    "v3_f16": case(v3(rope_scaling=yarn()), 2, "f16"),
    "v2_bf16": case(v2(num_hidden_layers=2, num_experts_per_tok=2), 22, "bf16"),
    "v3_bf16": case(v3(num_hidden_layers=2, num_experts_per_tok=2, n_routed_experts=8, n_group=2, topk_group=1,
                       rope_scaling=yarn()), 37, "bf16"),
    "v2_bf16_tied_long": case(v2(**DENSE, num_attention_heads=4, tie_word_embeddings=True), 0, "bf16", prompt=600),
    # 160, 576, 96, 200: no dimension of these is a multiple of 128.
    "v3_fp8": case(v3(hidden_size=160, q_lora_rank=96, intermediate_size=200, num_hidden_layers=2,
                      moe_intermediate_size=96, n_routed_experts=8, n_group=2, topk_group=1, num_experts_per_tok=2,
                      quantization_config=FP8), 29, "fp8"),
    "v3_int4": case(v3(**QUANTIZED, quantization_config=integers(4, 32)), 17, "bf16"),
    "v3_int4_128_long": case(v3(**DENSE, hidden_size=96, q_lora_rank=None, intermediate_size=136, rope_scaling=yarn(),
                                quantization_config=integers(4, 128)), 0, "bf16", prompt=600),
    "v3_int8_packed": case(v3(**QUANTIZED, quantization_config=integers(8, 32)), 4, "bf16"),
    "v3_int8_row": case(v3(**QUANTIZED, quantization_config=integers(8, 0, "int-quantized")), 31, "bf16"),
    "v3_nvfp4": case(v3(**QUANTIZED, quantization_config=NVFP4), 0, "bf16"),
    "v3_fp8_long": case(v3(**DENSE, hidden_size=96, q_lora_rank=None, intermediate_size=136, rope_scaling=yarn(),
                           quantization_config=FP8), 0, "fp8", prompt=600),
    # GigaChat3's values, beside 600 tokens of which most are decompressed.
    "v3_wide_values_long": case(v3(num_hidden_layers=2, v_head_dim=192, q_lora_rank=None), 3, prompt=600),
    "glm": case(glm(), 1),
    # 600 tokens: positions below 576 take the decompressed form with heads of 192 + 64 and 256.
    "glm_long": case(glm(num_hidden_layers=2, mlp_layer_types=["dense", "sparse"]), 18, prompt=600),
    "glm_bf16_long": case(glm(**GLM_DENSE), 0, "bf16", prompt=600),
    # Heads of 192 + 256 rows do not begin with blocks of 128: kv_b becomes bf16 here.
    "glm_fp8_long": case(glm(**GLM_DENSE, hidden_size=96, quantization_config=FP8), 0, "fp8", prompt=600),
    "glm_int4_long": case(glm(**GLM_DENSE, hidden_size=96, quantization_config=integers(4, 32)), 0, "bf16", prompt=600),
    "v32": case(v32(), 12, prompt=300),
    "glm5": case(glm5(), 13, prompt=300),
    # 320 keys of 600: prompts below 320 are decompressed, and of the others a page sees them all.
    "v32_long": case(v32(index_topk=320, rope_scaling=yarn()), 9, prompt=600),
    # In 16 bits the choices of a few tokens stay the same: of up to 36 keys, 32.
    "v32_bf16": case(v32(**DENSE), 10, "bf16", prompt=36),
    "v32_fp8": case(v32(**DENSE, hidden_size=96, quantization_config=FP8), 15, "fp8", prompt=36),
    "glm5_int4": case(glm5(**GLM_DENSE, hidden_size=96, q_lora_rank=32, indexer_types=["full", "shared"],
                           quantization_config=integers(4, 32)), 1, "bf16", prompt=36),
    "vl2_nested": case(VL2, 2, prefix="language."),
    # Positions up to 159 and 599 beside 64 that leave queries as they are: factors of 1.07 to 1.23.
    "mistral4": case(mistral(), 2, prompt=160),
    "mistral4_nested": case(mistral(), 0, prefix="language_model."),
    "mistral4_long": case(mistral(num_hidden_layers=2), 0, prompt=600),
    # All layers dense, which the class can do: it rounds its router's logits to bf16, and no seed is clear of that.
    "mistral4_bf16_long": case(mistral(**MISTRAL_DENSE), 0, "bf16", prompt=600),
    "mistral4_fp8_long": case(mistral(**MISTRAL_DENSE, hidden_size=96, quantization_config=FP8), 0, "fp8", prompt=600),
    "mistral4_int4_long": case(mistral(**MISTRAL_DENSE, hidden_size=96, quantization_config=integers(4, 32)), 0, "bf16",
                               prompt=600),
    "youtu": case(base_config(**DENSE, architectures=["YoutuForCausalLM"], model_type="youtu", q_lora_rank=48,
                              tie_word_embeddings=False, rope_theta=1600000), 0),
}


def published_config(entry):
    """config.json as a checkpoint of this kind has it."""
    torch_dtype = str(stored_dtype(entry["dtype"])).removeprefix("torch.")
    config = {**entry["config"], "torch_dtype": torch_dtype}
    if not entry["prefix"]:
        return config
    if entry["prefix"] == "language.":
        return {"model_type": "deepseek_vl_v2", "language_config": config, "tile_tag": "2D"}
    if config["model_type"] == "mistral4":
        return {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                "text_config": {key: value for key, value in config.items() if key != "architectures"},
                "vision_config": {"model_type": "pixtral", "hidden_size": 32}}
    return {"architectures": ["KimiVLForConditionalGeneration"], "model_type": "kimi_vl", "text_config": config,
            "vision_config": {"model_type": "moonvit", "hidden_size": 32}}


# ---- the reference -----------------------------------------------------------------------------------------------

def joined_experts(tensors):
    """Experts of a layer in one tensor, as classes without a conversion mapping of their own have them."""
    joined, experts = {}, {}
    for name, value in tensors.items():
        prefix, found, rest = name.partition(".mlp.experts.")
        if not found:
            joined[name] = value
            continue
        expert, part, _ = rest.split(".")
        experts.setdefault(prefix, {}).setdefault(int(expert), {})[part] = value
    for prefix, of in experts.items():
        ordered = [of[index] for index in range(len(of))]
        base = prefix + ".mlp.experts."
        joined[base + "gate_up_proj"] = torch.stack([torch.cat([e["gate_proj"], e["up_proj"]]) for e in ordered])
        joined[base + "down_proj"] = torch.stack([e["down_proj"] for e in ordered])
    return joined


def build(config, tensors, dtype):
    """A transformers model, loaded by published names from a written checkpoint with its own conversion mapping."""
    dropped = ("quantization_config", "architectures", "model_type")
    if config["model_type"] == "mistral4":
        dropped += ("rope_scaling", "rope_theta")
        tensors = joined_experts(tensors)
    words = {key: value for key, value in config.items() if key not in dropped}
    name = config["architectures"][0].removesuffix("ForCausalLM")
    if config.get("topk_method") == "noaux_tc" and name == "DeepseekV2":
        name = "DeepseekV3"  # the class that has this router
    kind, holder = getattr(transformers, name + "ForCausalLM"), getattr(transformers, name + "Config")
    with tempfile.TemporaryDirectory() as folder:
        holder(**words).save_pretrained(folder)
        save_file(tensors, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model, report = kind.from_pretrained(folder, dtype=dtype, attn_implementation="eager",
                                             experts_implementation="eager", output_loading_info=True)
    for what, names in report.items():
        assert not names, f"{what}: {names}"
    model.eval()
    check_scale(config, model)
    return model


def check_scale(config, model):
    """YaRN's mscale² must be in the softmax scale (older releases of DeepseekV2 left it out)."""
    expected = (config["qk_nope_head_dim"] + 64)**-0.5
    scaling = config["rope_scaling"] or config.get("rope_parameters")
    if scaling:
        expected *= (0.1 * scaling["mscale_all_dim"] * math.log(scaling["factor"]) + 1.0) ** 2
    for layer in model.model.layers:
        assert abs(layer.self_attn.scaling / expected - 1.0) < 1e-12, (layer.self_attn.scaling, expected)


def least_gap(scores, kept):
    """Per token: (last kept − first dropped) / last kept, of scores [T, n]; infinite if nothing is dropped."""
    if kept >= scores.shape[-1]:
        return torch.full(scores.shape[:1], math.inf, dtype=scores.dtype)
    ordered = scores.sort(dim=-1, descending=True).values
    return (ordered[:, kept - 1] - ordered[:, kept]) / ordered[:, kept - 1]


def route(config, logits, bias):
    """Our definition of the router: (experts kept [T, k] ascending, least relative gap [T])."""
    scores = logits.double()
    scores = scores.sigmoid() + bias.double() if bias is not None else scores.softmax(-1)
    gap = torch.full(scores.shape[:1], math.inf, dtype=torch.float64)
    if config.get("topk_method", "greedy") != "greedy":
        groups = scores.view(len(scores), config["n_group"], -1)
        best = groups.topk(2, -1).values.sum(-1) if bias is not None else groups.max(-1).values
        gap = least_gap(best, config["topk_group"])
        masked = torch.full_like(groups, -math.inf)
        kept_groups = best.topk(config["topk_group"], -1).indices[:, :, None].expand(-1, -1, groups.shape[-1])
        scores = masked.scatter(1, kept_groups, groups.gather(1, kept_groups)).view_as(scores)
    kept = scores.topk(config["num_experts_per_tok"], -1).indices.sort(-1).values
    return kept, torch.minimum(gap, least_gap(scores, config["num_experts_per_tok"]))


class RouterTrace:
    """What every router of a model saw and chose, over all forward passes while attached."""

    def __init__(self, config, model):
        self.config, self.calls, self.hooks = config, {}, []
        for index, layer in enumerate(model.model.layers):
            if hasattr(layer.mlp, "gate"):
                self.calls[index] = []
                self.hooks.append(layer.mlp.gate.register_forward_hook(self.recorder(index)))

    def recorder(self, index):
        def record(module, _, output):
            logits, _, chosen = output
            kept, gap = route(self.config, logits, getattr(module, "e_score_correction_bias", None))
            assert torch.equal(kept, chosen.sort(-1).values) or gap.min() < ROUTING_MARGIN, "the router's definition"
            self.calls[index].append((logits.double(), kept, gap))
        return record

    def take(self):
        """(logits, kept, gap) per MoE layer, tokens of all calls joined; and detaches."""
        for hook in self.hooks:
            hook.remove()
        return [tuple(torch.cat(parts) for parts in zip(*calls)) for calls in self.calls.values()]


class IndexTrace:
    """What every indexer of a model chose, held to a restatement in double of the published definition."""

    def __init__(self, config, model):
        self.config, self.calls, self.keys, self.hooks = config, {}, {}, []
        for index, layer in enumerate(model.model.layers):
            indexer = getattr(layer.self_attn, "indexer", None)
            if indexer is not None:
                self.calls[index] = []
                self.hooks.append(indexer.register_forward_hook(self.recorder(index), with_kwargs=True))

    def scores(self, index, module, hidden, q_low, cos, sin):
        """[T, keys so far], all pairs: Σ_h w_h · relu(q_h · k / √width); cos and sin [T, 64], each half of them the same."""
        config, double = self.config, torch.float64
        width, heads = config["index_head_dim"], config["index_n_heads"]
        half = cos[:, :32].to(double), sin[:, :32].to(double)

        def rotate(x):
            rope, rest = x[..., :64], x[..., 64:]
            c, s = (part.view(len(x), *[1] * (x.dim() - 2), 32) for part in half)
            if config["model_type"] == "glm_moe_dsa":
                a, b = rope[..., 0::2], rope[..., 1::2]
                rope = torch.stack((a * c - b * s, b * c + a * s), -1).flatten(-2)
            else:
                a, b = rope[..., :32], rope[..., 32:]
                rope = torch.cat((a * c - b * s, b * c + a * s), -1)
            return torch.cat((rope, rest), -1)

        def weight(linear):
            return linear.weight.to(double)
        q = rotate((q_low.to(double) @ weight(module.wq_b).T).view(-1, heads, width))
        k = hidden.to(double) @ weight(module.wk).T
        k = (k - k.mean(-1, keepdim=True)) / (k.var(-1, unbiased=False, keepdim=True) + 1e-6).sqrt()
        k = rotate(k * weight(module.k_norm) + module.k_norm.bias.to(double))
        k = torch.cat((self.keys[index], k)) if index in self.keys else k
        self.keys[index] = k
        weights = hidden.to(double) @ weight(module.weights_proj).T / math.sqrt(heads)
        return torch.einsum("qh,qhk->qk", weights, torch.relu(torch.einsum("qhd,kd->qhk", q, k) / math.sqrt(width)))

    def recorder(self, index):
        def record(module, arguments, keywords, chosen):
            hidden, q_low, (cos, sin) = arguments[:3]
            scores = self.scores(index, module, hidden[0], q_low[0], cos[0], sin[0])
            tokens, keys = scores.shape
            order = scores.masked_fill(torch.ones_like(scores).triu(1 + keys - tokens).bool(), -math.inf)
            order = order.sort(dim=-1, descending=True, stable=True)
            kept = min(self.config["index_topk"], keys)
            first = min(max(kept - (keys - tokens), 0), tokens)  # token that sees more keys than are chosen
            gap = torch.full((tokens,), math.inf, dtype=torch.float64)
            if kept < keys:
                largest = scores.abs().max(-1).values
                gap[first:] = ((order.values[:, kept - 1] - order.values[:, kept]) / largest)[first:]
            ours = order.indices[:, :kept].sort(-1).values
            same = (ours == chosen[0].long().sort(-1).values).all(-1)
            assert bool((same | (gap < self.bound(hidden)))[first:].all()), "the indexer's definition"
            self.calls[index].append((scores, ours, gap))
        return record

    @staticmethod
    def bound(hidden):
        return INDEX_MARGIN if hidden.dtype == torch.float32 else 0.05

    def take(self):
        """(scores, chosen, gap) of the first call per layer that has an indexer; and detaches."""
        for hook in self.hooks:
            hook.remove()
        return {index: calls[0] for index, calls in self.calls.items()}

    def least_gap(self):
        return min((float(gap.min()) for calls in self.calls.values() for _, _, gap in calls), default=math.inf)


def biases(model):
    gates = [layer.mlp.gate for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    return [getattr(gate, "e_score_correction_bias", None) for gate in gates]


def noise_draws(shape):
    """Uniform in [−1, 1)."""
    return [centred(f"noise.{trial}", 0, shape, 1.0).double() for trial in range(NOISE_TRIALS)]


@torch.no_grad()
def prompt_logits(model, prompt):
    return model(torch.tensor([prompt]), use_cache=False).logits[0]


@torch.no_grad()
def continue_greedily(model, prompt):
    """(64 tokens, least margin of the best over the second relative to max|logit|)."""
    tokens, margin, cache, feed = [], math.inf, transformers.DynamicCache(config=model.config), prompt
    for _ in range(CONTINUATION):
        logits = model(torch.tensor([feed]), past_key_values=cache, use_cache=True).logits[0, -1]
        best = logits.topk(2).values
        margin = min(margin, float((best[0] - best[1]) / logits.abs().max()))
        feed = [int(logits.argmax())]
        tokens += feed
    return tokens, margin


def prompt_of(name, entry, seed):
    vocabulary = entry["config"]["vocab_size"]
    return [int(u * vocabulary) for u in uniform(f"prompt.{name}", seed, entry["prompt"])]


def kept_positions(length):
    """Positions whose logits are stored: both ends, both sides of page and form borders, and the middle."""
    wanted = {0, 1, length // 2, length - 1} | ({255, 256, 511, 512} if length > 512 else {7, 31})
    return sorted(wanted)


def relative_l2(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


def run_case(name, entry, seed):
    """The golden's header and arrays, and a list of what speaks against this seed."""
    config, dtype = entry["config"], entry["dtype"]
    # Values go by the name in the file, prefix included.
    how = config.get("quantization_config")
    tensors = {key: tensor(entry["prefix"] + key, seed, shape, dtype, how) for key, shape in shapes_of(config).items()}
    prompt = prompt_of(name, entry, seed)
    positions = kept_positions(len(prompt))
    header = {"name": name, "seed": seed, "dtype": dtype, "vocabulary": config["vocab_size"], "prompt": prompt,
              "positions": positions, "continuation": [], "arrays": ["f32"],
              "made_with": " ".join(f"{key}-{value}" for key, value in PINNED.items()),
              "config": json.dumps(published_config(entry), indent=1)}
    against = []

    model = build(config, tensors, torch.float32)
    trace, index_trace = RouterTrace(config, model), IndexTrace(config, model)
    reference = prompt_logits(model, prompt)
    routes, chosen = trace.take(), index_trace.take()
    if chosen:
        # Keys of the stored positions that choose, of each layer with an indexer.
        header["chosen"] = {str(layer): {str(position): ours[position].tolist() for position in positions
                                         if position >= config["index_topk"]}
                            for layer, (_, ours, _) in chosen.items()}
        gap = min(float(gap.min()) for _, _, gap in chosen.values())
        if gap < INDEX_MARGIN:
            against.append(f"index margin {gap:.1e}")
    arrays = [reference[positions]]
    if dtype in ("f32", "f16"):
        trace, index_trace = RouterTrace(config, model), IndexTrace(config, model)
        header["continuation"], margin = continue_greedily(model, prompt)
        if index_trace.least_gap() < INDEX_MARGIN:
            against.append(f"index margin {index_trace.least_gap():.1e} in the continuation")
        index_trace.take()
        gap = min((float(gap.min()) for _, _, gap in trace.take()), default=math.inf)
        if margin < TOKEN_MARGIN:
            against.append(f"token margin {margin:.1e}")
        if len(set(header["continuation"])) < DISTINCT_TOKENS:
            against.append(f"only {len(set(header['continuation']))} different tokens")
        if gap < ROUTING_MARGIN:
            against.append(f"routing margin {gap:.1e}")
        notes = f"token margin {margin:.1e}, routing margin {gap:.1e}"
    else:
        narrow = {key: value.to(torch.bfloat16) if "e_score" not in key else value for key, value in tensors.items()}
        model = build(config, narrow, torch.bfloat16)
        trace, index_trace = RouterTrace(config, model), IndexTrace(config, model)
        rounded = prompt_logits(model, prompt).float()
        for layer, (narrowed, _, _) in index_trace.take().items():
            wide, kept, gap = chosen[layer]
            noise = float((wide - narrowed).abs().max() / wide.abs().max())
            if float(gap.min()) < 2 * noise:
                against.append(f"index margin {float(gap.min()):.1e} with noise {noise:.1e}")
        for (wide, kept, _), (narrowed, kept_narrow, _), bias in zip(routes, trace.take(), biases(model)):
            flips = int((kept != kept_narrow).any(-1).sum())
            noise = float((wide - narrowed).abs().max())
            flips += sum(int((route(config, wide + noise * draw, bias)[0] != kept).any(-1).sum())
                         for draw in noise_draws(wide.shape))
            if flips:
                against.append(f"{flips} choices of experts change with noise {noise:.1e}")
        arrays.append(rounded[positions])
        header["arrays"].append("torch_bf16")
        notes = f"torch bf16 error {relative_l2(arrays[1], arrays[0]):.2e}"
    return header, arrays, against, notes


def write_golden(path, header, arrays):
    """'EGOLDEN1', u64 header bytes, JSON header, then the arrays [positions, vocabulary] f32, little endian."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(array.contiguous().float().numpy().astype("<f4").tobytes() for array in arrays)
    path.write_bytes(b"EGOLDEN1" + struct.pack("<Q", len(text)) + text + body)
    return 16 + len(text) + len(body)


def search(names, tries):
    for name in names:
        for seed in range(tries):
            _, _, against, notes = run_case(name, CASES[name], seed)
            if not against:
                print(f"{name}: seed {seed} ({notes})", flush=True)
                break
        else:
            print(f"{name}: none of {tries} seeds", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--search", type=int, metavar="SEEDS")
    arguments = parser.parse_args()
    for module in (torch, transformers):
        found = module.__version__.split("+")[0]
        if found != PINNED[module.__name__]:
            sys.exit(f"{module.__name__} {found} is installed, goldens are made with {PINNED[module.__name__]}")
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    names = arguments.cases or list(CASES)
    if arguments.search:
        return search(names, arguments.search)
    total = 0
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        header, arrays, against, notes = run_case(name, CASES[name], CASES[name]["seed"])
        if against:
            sys.exit(f"{name}: seed {header['seed']} is too close to a tie: {', '.join(against)}")
        total += write_golden(arguments.out / f"{name}.golden", header, arrays)
        print(f"{name}: {notes}", flush=True)
    print(f"{len(names)} goldens, {total} bytes")


if __name__ == "__main__":
    main()
