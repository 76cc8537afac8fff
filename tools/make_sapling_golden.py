#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/model/sapling.golden: what transformers computes for Sapling on the demo prompts, for sapling_test.cpp.

Pinned as make_goldens.py, and accelerate (transformers wants it for FP8 checkpoints). transformers widens the FP8 weights exactly (their scales are powers of two); the reference
is an f32 run on them, beside it torch's own bf16 run. The prompt is the demo prompts one after another.

  make_sapling_golden.py models/sapling data/prompts/demo.jsonl tests/model/sapling.golden
"""
import json
import pathlib
import sys

import torch
import transformers

from make_goldens import prompt_logits, write_golden

TOKENS = 290  # positions below 256 are decompressed, the rest absorbed


def main(model_path, prompts_path, out):
    torch.set_num_threads(2)
    model_path = pathlib.Path(model_path)
    text = "".join(json.loads(line)["prompt"] for line in pathlib.Path(prompts_path).read_text().splitlines())
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_path)
    prompt = tokenizer.encode(text, add_special_tokens=False)[:TOKENS]
    assert len(prompt) == TOKENS, len(prompt)
    positions = [0, 40, 255, 256, TOKENS - 1]
    model = transformers.AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.bfloat16, attn_implementation="eager")
    model.eval()
    with torch.no_grad():
        narrow = prompt_logits(model, prompt)
        wide = prompt_logits(model.float(), prompt)
    header = {
        "name": "sapling", "seed": 0, "dtype": "fp8", "config": (model_path / "config.json").read_text(),
        "vocabulary": model.config.vocab_size, "prompt": prompt, "positions": positions, "continuation": [],
        "arrays": ["f32", "torch_bf16"],
    }
    size = write_golden(pathlib.Path(out), header, [wide[positions], narrow[positions]])
    error = (narrow[positions].float() - wide[positions]).norm() / wide[positions].norm()
    print(f"{out}: {size} bytes, torch-bf16's own error {error:.2e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
