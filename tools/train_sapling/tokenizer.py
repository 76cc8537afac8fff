# SPDX-License-Identifier: Apache-2.0
"""Stage 2: byte-level BPE in DeepSeek's form, and the encoded corpus.

`train` writes tokenizer.json; `encode` writes one uint16 stream per split with document starts.
"""
import argparse, json, os, random
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers, AddedToken
from .config import SPECIALS, Shape, BOS_ID, EOS_ID, USER_ID, ASSISTANT_ID

# As DeepSeek-V3's tokenizer.json: digits in groups of at most three, CJK runs, then words with one
# leading mark, marks with their newlines, newlines, trailing and inner white space.
DIGITS = r"\p{N}{1,3}"
CJK = r"[一-龥぀-ゟ゠-ヿ]+"
WORDS = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
         r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def blank():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.Sequence([])
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(p), "isolated") for p in (DIGITS, CJK, WORDS)]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    return t


def train(args):
    rng = random.Random(args.seed)
    texts, size = [], 0
    docs = [json.loads(l) for l in open(os.path.join(args.corpus, "train.jsonl"))]
    rng.shuffle(docs)
    for d in docs:
        text = d.get("text") or d["q"] + "\n" + d["a"]
        texts.append(text)
        size += len(text)
        if size > args.bytes:
            break
    t = blank()
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=args.vocab, special_tokens=[AddedToken(x, special=True, normalized=False) for x in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    from tokenizers import processors
    t.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[0]} $A", pair=f"{SPECIALS[0]} $A {SPECIALS[0]}:1 $B:1",
        special_tokens=[(SPECIALS[0], BOS_ID)])
    os.makedirs(args.out, exist_ok=True)
    t.save(os.path.join(args.out, "tokenizer.json"))
    n = sum(len(e.ids) for e in t.encode_batch(texts[:200]))
    print(f"vocabulary {t.get_vocab_size()}, {sum(len(x.encode()) for x in texts[:200]) / n:.3f} bytes per token")


def encode(args):
    t = Tokenizer.from_file(os.path.join(args.out, "tokenizer.json"))
    for split in ("train", "held"):
        docs = [json.loads(l) for l in open(os.path.join(args.corpus, split + ".jsonl"))]
        ids, starts, kinds, nbytes, total = [], [], [], [], 0
        for at in range(0, len(docs), 4096):
            part = docs[at:at + 4096]
            enc = [e.ids for e in t.encode_batch([d.get("text") or d["q"] for d in part], add_special_tokens=False)]
            ans = {i: e for i, e in zip([i for i, d in enumerate(part) if d["kind"] == "qa"],
                   [e.ids for e in t.encode_batch([d["a"] for d in part if d["kind"] == "qa"], add_special_tokens=False)])}
            for i, (d, e) in enumerate(zip(part, enc)):
                x = [BOS_ID, USER_ID, *e, ASSISTANT_ID, *ans[i], EOS_ID] if d["kind"] == "qa" else [BOS_ID, *e, EOS_ID]
                ids.append(np.array(x, dtype=np.uint16))
                starts.append(total)
                total += len(x)
                kinds.append({"python": 0, "prose": 1, "qa": 2}[d["kind"]])
                nbytes.append(len((d.get("text") or d["q"] + d["a"]).encode()))
        np.savez(os.path.join(args.out, split + ".npz"), tokens=np.concatenate(ids), starts=np.array(starts),
                 kinds=np.array(kinds, np.uint8), nbytes=np.array(nbytes))
        print(f"{split}: {len(docs)} documents, {total} tokens, {sum(nbytes) / total:.3f} bytes per token", flush=True)


def main(argv):
    p = argparse.ArgumentParser(prog="tokenizer", description=__doc__)
    p.add_argument("what", choices=["train", "encode", "both"])
    p.add_argument("--corpus", default="build/corpus")
    p.add_argument("--out", default="build/tokens")
    p.add_argument("--vocab", type=int, default=Shape().vocab)
    p.add_argument("--bytes", type=int, default=60_000_000)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args(argv)
    if a.what != "encode":
        train(a)
    if a.what != "train":
        encode(a)
