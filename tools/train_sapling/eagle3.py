# SPDX-License-Identifier: Apache-2.0
"""Stage 4: the EAGLE3 head, on text and on the target's own generations, with several unrolled steps.

The target is frozen. Labels are the target's own distributions (soft cross-entropy over the draft
vocabulary); step k reads the state the draft itself produced at step k-1, as it will when drafting.
"""
import argparse, dataclasses, json, os, time
import numpy as np
import torch
import torch.nn.functional as F
from . import model as M
from .config import shape_from
from .data import Stream
from .generate import generate, rounded
from .muon import optimisers
from .plot import loss_svg
from .train import choose_attention, rate


def load_target(path, device):
    saved = torch.load(path, map_location=device, weights_only=True)
    net = M.Sapling(shape_from(saved["shape"])).to(device)
    net.load_state_dict(saved["model"])
    return net.requires_grad_(False)


def own_text(net, stream, sequences, prompt, count, batch, seed):
    """The target's continuations of prompts from the training text: 40 % greedy, 30 % at 0.6, 30 % at 1.0."""
    torch.manual_seed(seed)
    out = []
    for i in range(0, sequences, batch):
        p = stream.batch(1_000_000 + i, batch, prompt, at_start=0.6)
        u = torch.rand(batch, device=p.device)
        temp = torch.where(u < 0.4, 0.0, torch.where(u < 0.7, 0.6, 1.0))
        with rounded():
            out.append(generate(net, p, count, temp).to(torch.int16))
    return torch.cat(out)


def main(argv):
    p = argparse.ArgumentParser(prog="eagle3", description=__doc__)
    p.add_argument("--tokens", default="build/tokens")
    p.add_argument("--model", default="build/model/checkpoint.pt")
    p.add_argument("--out", default="build/eagle3")
    p.add_argument("--minutes", type=float, default=4.0)
    p.add_argument("--steps", type=int)
    p.add_argument("--rows", type=int, default=24)
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--unroll", type=int, default=5)
    p.add_argument("--sequences", type=int, default=24576)
    p.add_argument("--generate-batch", type=int, default=4096)
    p.add_argument("--prompt", type=int, default=96)
    p.add_argument("--own-share", type=float, default=0.6, help="share of rows that are the target's own text")
    p.add_argument("--step-decay", type=float, default=0.9)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--adam-lr", type=float, default=1.5e-3)
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args(argv)
    begun = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_float32_matmul_precision("high")
    os.makedirs(a.out, exist_ok=True)
    net = load_target(a.model, device)
    s = net.s
    stream = Stream(os.path.join(a.tokens, "train.npz"), device, a.seed + 77)
    choose_attention(s, device, a.rows, a.length)

    own_path = os.path.join(a.out, "own.pt")
    if os.path.exists(own_path):
        own = torch.load(own_path, map_location=device, weights_only=True)
    else:
        own = own_text(net, stream, a.sequences, a.prompt, a.length + 1 - a.prompt, a.generate_batch, a.seed)
        torch.save(own, own_path)
    print(f"own text: {tuple(own.shape)}, {time.time() - begun:.0f}s", flush=True)

    torch.manual_seed(a.seed)
    draft = M.Eagle3(s).to(device)
    # Draft vocabulary: the most frequent tokens of the text and of the target's own text, ids ascending.
    freq = (torch.bincount(stream.tokens.long(), minlength=s.vocab).double() / stream.n
            + torch.bincount(own.long().flatten(), minlength=s.vocab).double() / own.numel())
    ids = freq.topk(s.draft_vocab).indices.sort().values
    draft.d2t.copy_(ids - torch.arange(s.draft_vocab, device=device))
    print(f"draft vocabulary {s.draft_vocab} of {s.vocab} covers {freq[ids].sum().item() / 2:.4f}", flush=True)
    with torch.no_grad():
        draft.lm_head.copy_(net.embed[ids])
    muon, adam = optimisers(draft)
    state = {"step": 0, "steps": a.steps, "log": []}
    ckpt = os.path.join(a.out, "checkpoint.pt")
    if os.path.exists(ckpt):
        saved = torch.load(ckpt, map_location=device, weights_only=True)
        draft.load_state_dict(saved["draft"])
        adam.load_state_dict(saved["adam"])
        for k, v in saved["muon"].items():
            muon.state[tuple(map(int, k.split("x")))].copy_(v)
        state = saved["state"]
        print("resumed at step", state["step"], flush=True)

    def soft_loss(n, w, target_logits):
        """Cross-entropy against the target's probabilities of draft tokens; also the share of equal argmaxes."""
        logq = F.log_softmax(M.linear(n, M.bf16_round(w)).float(), -1)
        prob = torch.softmax(target_logits.float(), -1)[..., ids]
        return -(prob * logq).sum(-1)

    if device == "cuda":
        M.Layer.forward = torch.compile(M.Layer.forward)
        M.Eagle3.step = torch.compile(M.Eagle3.step, dynamic=False)
        soft_loss = torch.compile(soft_loss)

    def save():
        torch.save({"draft": draft.state_dict(), "adam": adam.state_dict(), "state": state, "shape": dataclasses.asdict(s),
                    "muon": {f"{k[0]}x{k[1]}": v for k, v in muon.state.items()}}, ckpt + ".tmp")
        os.replace(ckpt + ".tmp", ckpt)

    own_rows = round(a.rows * a.own_share)
    weights = [a.step_decay ** k for k in range(a.unroll)]
    timing = []
    while state["steps"] is None or state["step"] < state["steps"]:
        step = state["step"]
        if state["steps"] is None and len(timing) == 30:
            per = sorted(timing[5:])[len(timing[5:]) // 2]
            state["steps"] = int(a.minutes * 60 / per)
            print(f"{per * 1e3:.1f} ms per step -> {state['steps']} steps", flush=True)
        scale = rate(step / (state["steps"] or 10_000), 100 / (state["steps"] or 10_000), 0.3)
        started = time.time()
        rng = np.random.default_rng([a.seed, 5, step])
        pick = torch.from_numpy(rng.integers(0, len(own), own_rows)).to(device)
        tokens = torch.cat([own[pick].long()[:, :a.length], stream.batch(step, a.rows - own_rows, a.length)])
        with torch.no_grad():
            n, taps, _, (cos, sin), emb = net.hidden(tokens, s.taps)
            labels = net.head(n)
        loss, each = 0.0, []
        for k, m in enumerate(M.unroll(draft, emb, draft.first(taps), cos, sin, a.unroll)):
            ce = soft_loss(m, draft.lm_head, labels[:, 1:])[:, a.unroll - 1:].mean()
            loss = loss + weights[k] * ce
            each.append(ce)
        (loss / sum(weights)).backward()
        muon.step(a.lr * scale)
        for g in adam.param_groups:
            g["lr"] = a.adam_lr * scale
        adam.step()
        for q in draft.parameters():
            q.grad = None
        state["step"] += 1
        if len(timing) < 30 or step % 25 == 0:
            values = [e.item() for e in each]
            if step % 25 == 0:
                state["log"].append([step] + values)
            timing.append(time.time() - started)
        if step % 250 == 0 or step < 2:
            print(f"step {step} " + " ".join(f"{v:.3f}" for v in values) + f" t {time.time() - begun:.0f}s", flush=True)
        if step % 1500 == 1499:
            save()
    save()
    json.dump(state, open(os.path.join(a.out, "log.json"), "w"))
    loss_svg(state["log"], os.path.join(a.out, "loss.svg"), [f"draft step {k + 1}" for k in range(a.unroll)])
