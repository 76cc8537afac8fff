# SPDX-License-Identifier: Apache-2.0
"""Stage 5: the two checkpoints as they ship, and the way back from them into the trainer's modules."""
import argparse, json, os, shutil
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from . import model as M
from .config import ASSISTANT, BOS, BOS_ID, EOS, EOS_ID, PAD, PAD_ID, SPECIALS, USER, Shape, shape_from

CHAT_TEMPLATE = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}"
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + '\\n\\n' }}"
    "{% elif message['role'] == 'user' %}{{ '" + USER + "' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '" + ASSISTANT + "' + message['content'] + eos_token }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '" + ASSISTANT + "' }}{% endif %}")
SHARD = 14_000_000
NOT_FP8 = ["lm_head", "kv_a_proj_with_mqa", "eh_proj"]


def names_of_layer(layer, prefix):
    """(checkpoint name, tensor, format) for one decoder layer; format is fp8, bf16 or f32."""
    at = layer.self_attn
    for n in ("input_layernorm", "post_attention_layernorm"):
        yield f"{prefix}.{n}.weight", getattr(layer, n), "bf16"
    yield from attention_names(at, prefix)
    mlp = layer.mlp
    if isinstance(mlp, M.MoE):
        E = mlp.s.experts
        yield f"{prefix}.mlp.gate.weight", mlp.router, "bf16"
        yield f"{prefix}.mlp.gate.e_score_correction_bias", mlp.bias, "f32"
        for n in ("gate_proj", "up_proj", "down_proj"):
            w = getattr(mlp, n)
            for j in range(E):
                yield f"{prefix}.mlp.experts.{j}.{n}.weight", w[j], "fp8"
            yield f"{prefix}.mlp.shared_experts.{n}.weight", w[E], "fp8"
    else:
        for n in ("gate_proj", "up_proj", "down_proj"):
            yield f"{prefix}.mlp.{n}.weight", getattr(mlp, n), "fp8"


def attention_names(at, prefix):
    for n in ("q_a_proj", "q_b_proj", "kv_b_proj", "o_proj"):
        yield f"{prefix}.self_attn.{n}.weight", getattr(at, n), "fp8"
    yield f"{prefix}.self_attn.kv_a_proj_with_mqa.weight", at.kv_a_proj_with_mqa, "fp8" if at.fp8_kv_a else "bf16"
    for n in ("q_a_layernorm", "kv_a_layernorm"):
        yield f"{prefix}.self_attn.{n}.weight", getattr(at, n), "bf16"


def target_names(net):
    yield "model.embed_tokens.weight", net.embed, "bf16"
    for i, layer in enumerate(net.layers):
        yield from names_of_layer(layer, f"model.layers.{i}")
    yield "model.norm.weight", net.norm, "bf16"
    p, m = f"model.layers.{net.s.layers}", net.mtp
    yield f"{p}.enorm.weight", m.enorm, "bf16"
    yield f"{p}.hnorm.weight", m.hnorm, "bf16"
    yield f"{p}.eh_proj.weight", m.eh_proj, "bf16"
    yield f"{p}.shared_head.norm.weight", m.norm, "bf16"
    yield from names_of_layer(m.layer, p)


def draft_names(d):
    yield "fc.weight", d.fc, "fp8"
    for n in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        yield f"midlayer.{n}.weight", getattr(d, n), "bf16"
    yield from attention_names(d.self_attn, "midlayer")
    for n in ("gate_proj", "up_proj", "down_proj"):
        yield f"midlayer.mlp.{n}.weight", getattr(d.mlp, n), "fp8"
    yield "norm.weight", d.norm, "bf16"
    yield "lm_head.weight", d.lm_head, "bf16"


@torch.no_grad()
def tensors_of(named):
    out = {}
    for name, w, fmt in named:
        w = w.detach().float().cpu()
        if fmt == "fp8":
            q, scale, (n, k) = M.fp8_blocks(w)
            out[name] = M.unblock(q.float(), n, k).to(torch.float8_e4m3fn).contiguous()
            out[name + "_scale_inv"] = scale[..., 0, :, 0].contiguous()
        else:
            out[name] = w.to(torch.bfloat16 if fmt == "bf16" else torch.float32).contiguous()
    return out


def write_shards(tensors, folder):
    shards, size = [{}], 0
    for name, t in tensors.items():
        b = t.numel() * t.element_size()
        if size + b > SHARD:
            shards.append({})
            size = 0
        shards[-1][name] = t
        size += b
    os.makedirs(folder, exist_ok=True)
    if len(shards) == 1:
        save_file(shards[0], os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
        return
    index = {"metadata": {"total_size": sum(t.numel() * t.element_size() for t in tensors.values())}, "weight_map": {}}
    for i, shard in enumerate(shards):
        f = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, os.path.join(folder, f), metadata={"format": "pt"})
        index["weight_map"].update({n: f for n in shard})
    write_json(index, os.path.join(folder, "model.safetensors.index.json"))


def write_json(obj, path):
    with open(path, "w") as f:
        json.dump(obj, f, indent=2, ensure_ascii=False)
        f.write("\n")


def quantization(skip):
    return {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128],
            "modules_to_not_convert": skip}


def common_config(s):
    return {"attention_bias": False, "attention_dropout": 0.0, "bos_token_id": BOS_ID, "eos_token_id": EOS_ID,
            "hidden_act": "silu", "hidden_size": s.hidden, "initializer_range": 0.02, "kv_lora_rank": s.kv_rank,
            "max_position_embeddings": s.max_positions, "num_attention_heads": s.heads, "num_key_value_heads": s.heads,
            "q_lora_rank": s.q_rank, "qk_nope_head_dim": s.nope, "qk_rope_head_dim": s.rope, "rms_norm_eps": s.eps,
            "rope_interleave": True, "rope_scaling": None, "rope_theta": s.theta, "torch_dtype": "bfloat16",
            "use_cache": True, "v_head_dim": s.v, "vocab_size": s.vocab}


def target_config(s):
    return {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **common_config(s),
            "ep_size": 1, "first_k_dense_replace": s.dense_layers, "intermediate_size": s.intermediate,
            "moe_intermediate_size": s.expert_width, "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": s.experts,
            "n_shared_experts": 1, "norm_topk_prob": True, "num_experts_per_tok": s.top_k,
            "num_hidden_layers": s.layers, "num_nextn_predict_layers": 1, "pad_token_id": PAD_ID,
            "routed_scaling_factor": s.routed_scale, "scoring_func": "sigmoid", "tie_word_embeddings": True,
            "topk_group": 1, "topk_method": "noaux_tc", "quantization_config": quantization(NOT_FP8)}


def draft_config(s):
    return {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v3", **common_config(s),
            "draft_vocab_size": s.draft_vocab, "first_k_dense_replace": 1, "intermediate_size": s.draft_intermediate,
            "num_hidden_layers": 1, "num_nextn_predict_layers": 0, "target_hidden_size": s.hidden,
            "norm_before_residual": False, "tie_word_embeddings": False,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(s.taps), "use_aux_hidden_state": True},
            "quantization_config": quantization(["lm_head"])}


def write_tokenizer(tokens, folder, s):
    shutil.copy(os.path.join(tokens, "tokenizer.json"), os.path.join(folder, "tokenizer.json"))
    added = {str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                      "special": True} for i, t in enumerate(SPECIALS)}
    write_json({"add_bos_token": True, "add_eos_token": False, "added_tokens_decoder": added, "bos_token": BOS,
                "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": EOS, "pad_token": PAD,
                "model_max_length": s.max_positions, "tokenizer_class": "PreTrainedTokenizerFast",
                "unk_token": None}, os.path.join(folder, "tokenizer_config.json"))
    write_json({"bos_token_id": BOS_ID, "eos_token_id": EOS_ID, "pad_token_id": PAD_ID,
                "do_sample": True, "temperature": 0.7, "top_p": 0.95}, os.path.join(folder, "generation_config.json"))


# ---- the way back: shipped files -> trainer modules ---------------------------------------------

def read_tensors(folder):
    out = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            with safe_open(os.path.join(folder, f), "pt") as z:
                for n in z.keys():
                    out[n] = z.get_tensor(n)
    return out


def dequantised(tensors, name):
    w = tensors[name].float()
    scale = tensors.get(name + "_scale_inv")
    if scale is None:
        return w
    n, k = w.shape
    return w * scale.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]


@torch.no_grad()
def fill(named, tensors):
    for name, w, _ in named:
        w.copy_(dequantised(tensors, name))


def shape_of(target_dir, draft_dir):
    c, d = (json.load(open(os.path.join(x, "config.json"))) for x in (target_dir, draft_dir))
    return Shape(vocab=c["vocab_size"], hidden=c["hidden_size"], layers=c["num_hidden_layers"],
                 dense_layers=c["first_k_dense_replace"], heads=c["num_attention_heads"], q_rank=c["q_lora_rank"],
                 kv_rank=c["kv_lora_rank"], intermediate=c["intermediate_size"], experts=c["n_routed_experts"],
                 top_k=c["num_experts_per_tok"], expert_width=c["moe_intermediate_size"],
                 routed_scale=c["routed_scaling_factor"], theta=c["rope_theta"], max_positions=c["max_position_embeddings"],
                 taps=tuple(d["eagle_config"]["eagle_aux_hidden_state_layer_ids"]), draft_vocab=d["draft_vocab_size"],
                 draft_intermediate=d["intermediate_size"])


def load_exported(target_dir, draft_dir, device="cpu"):
    """(Sapling, Eagle3) with the shipped weights."""
    s = shape_of(target_dir, draft_dir)
    net, draft = M.Sapling(s), M.Eagle3(s)
    fill(target_names(net), read_tensors(target_dir))
    t = read_tensors(draft_dir)
    fill(draft_names(draft), t)
    draft.d2t.copy_(t["d2t"])
    return net.to(device).requires_grad_(False), draft.to(device).requires_grad_(False)


def main(argv):
    p = argparse.ArgumentParser(prog="export", description=__doc__)
    p.add_argument("--model", default="build/model/checkpoint.pt")
    p.add_argument("--eagle3", default="build/eagle3/checkpoint.pt")
    p.add_argument("--tokens", default="build/tokens")
    p.add_argument("--out", default="models")
    a = p.parse_args(argv)
    saved = torch.load(a.model, map_location="cpu", weights_only=True)
    s = shape_from(saved["shape"])
    net = M.Sapling(s)
    net.load_state_dict(saved["model"])
    folder = os.path.join(a.out, "sapling")
    write_shards(tensors_of(target_names(net)), folder)
    write_json(target_config(s), os.path.join(folder, "config.json"))
    write_tokenizer(a.tokens, folder, s)
    if os.path.exists(a.eagle3):
        draft = M.Eagle3(s)
        draft.load_state_dict(torch.load(a.eagle3, map_location="cpu", weights_only=True)["draft"])
        tensors = tensors_of(draft_names(draft))
        ids = draft.draft_ids()
        tensors["d2t"] = draft.d2t.clone()
        tensors["t2d"] = torch.zeros(s.vocab, dtype=torch.bool).scatter(0, ids, True)
        folder = os.path.join(a.out, "sapling-eagle3")
        write_shards(tensors, folder)
        write_json(draft_config(s), os.path.join(folder, "config.json"))
    for d, _, fs in os.walk(a.out):
        for f in fs:
            print(f"{os.path.getsize(os.path.join(d, f)):>12,} {os.path.join(d, f)}")
