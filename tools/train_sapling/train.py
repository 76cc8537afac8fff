# SPDX-License-Identifier: Apache-2.0
"""Stage 3: the model and its MTP layer, trained together. Resumable: rerun the same command.

loss = next token + 0.3 * MTP. Muon for matrices, AdamW for the rest; warm-up, constant, linear decay.
"""
import argparse, dataclasses, json, math, os, time
import torch
import torch.nn.functional as F
from . import model as M
from .config import Shape, TINY
from .data import Stream, held_windows
from .muon import optimisers
from .plot import loss_svg


def choose_attention(s, device, rows, length):
    """Times the two ways to run 192/128-wide attention here and keeps the faster."""
    if device != "cuda":
        M.ATTENTION["backend"] = "plain"
        return
    q = torch.randn(rows, s.heads, length, s.nope + s.rope, device=device, dtype=torch.bfloat16, requires_grad=True)
    v = torch.randn(rows, s.heads, length, s.v, device=device, dtype=torch.bfloat16, requires_grad=True)
    best = {}
    for backend in ("pad", "plain"):
        M.ATTENTION["backend"] = backend
        try:
            for i in range(4):
                if i == 1:
                    torch.cuda.synchronize(); t = time.time()
                M.causal_attention(q, q, v, 0.07).sum().backward()
            torch.cuda.synchronize()
            best[backend] = (time.time() - t) / 3
        except RuntimeError as e:
            print("attention", backend, "failed:", str(e)[:120])
    M.ATTENTION["backend"] = min(best, key=best.get)
    print("attention forward+backward, seconds:", best, "->", M.ATTENTION["backend"], flush=True)


def rate(progress, warm, decay_from):
    if progress < warm:
        return progress / warm
    return 1.0 if progress < decay_from else max(0.0, (1 - progress) / (1 - decay_from))


@torch.no_grad()
def evaluate(model, path, kinds=(0, 1, 2), length=1024, limit=120_000):
    """Bits per byte of held-out text, and MTP loss, per kind."""
    out = {}
    for kind in kinds:
        rows, nbytes = held_windows(path, kind, length, limit, model.embed.device)
        nats = mtp = count = mtp_count = 0.0
        for part in rows.split(32):
            inp, tgt = part[:, :-1].clamp_min(0), part[:, 1:]
            n, _, _, (cos, sin), emb = model.hidden(inp)
            nats += F.cross_entropy(model.head(n).float().flatten(0, 1), tgt.flatten(), ignore_index=-1, reduction="sum").item()
            m, _, _ = model.mtp.step(*M.slots(emb, n, cos, sin), [], [])
            mtp += F.cross_entropy(model.head(m).float().flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=-1, reduction="sum").item()
            count += (tgt >= 0).sum().item()
            mtp_count += (tgt[:, 1:] >= 0).sum().item()
        out[("python", "prose", "qa")[kind]] = {"bits_per_byte": nats / math.log(2) / nbytes, "loss": nats / count, "mtp_loss": mtp / mtp_count}
    return out


def main(argv):
    p = argparse.ArgumentParser(prog="model", description=__doc__)
    p.add_argument("--tokens", default="build/tokens")
    p.add_argument("--out", default="build/model")
    p.add_argument("--minutes", type=float, default=10.0, help="fixes the number of steps from the speed of the first ones")
    p.add_argument("--steps", type=int, help="overrides --minutes")
    p.add_argument("--until", type=float, default=1e9, help="stop (resumable) after this many seconds")
    p.add_argument("--rows", type=int, default=48)
    p.add_argument("--length", type=int, default=2048)
    p.add_argument("--lr", type=float, default=3e-3)
    p.add_argument("--adam-lr", type=float, default=2e-3)
    p.add_argument("--decay-from", type=float, default=0.35)
    p.add_argument("--mtp-weight", type=float, default=0.3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tiny", action="store_true")
    a = p.parse_args(argv)
    begun = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(a.seed)
    torch.set_float32_matmul_precision("high")
    s = TINY if a.tiny else Shape()
    os.makedirs(a.out, exist_ok=True)
    stream = Stream(os.path.join(a.tokens, "train.npz"), device, a.seed)
    held = os.path.join(a.tokens, "held.npz")
    net = M.Sapling(s).to(device)
    muon, adam = optimisers(net)
    choose_attention(s, device, a.rows, a.length)
    state = {"step": 0, "steps": a.steps, "log": [], "seconds": 0.0}
    ckpt = os.path.join(a.out, "checkpoint.pt")
    if os.path.exists(ckpt):
        saved = torch.load(ckpt, map_location=device, weights_only=True)
        net.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        for k, v in saved["muon"].items():
            muon.state[tuple(map(int, k.split("x")))].copy_(v)
        state = saved["state"]
        print("resumed at step", state["step"], "of", state["steps"], flush=True)
    plain = M.Layer.forward, M.MTP.step
    if device == "cuda":
        M.Layer.forward = torch.compile(M.Layer.forward)
        M.MTP.step = torch.compile(M.MTP.step)
        cross_entropy = torch.compile(lambda n, w, t: F.cross_entropy(M.linear(n, M.bf16_round(w)).flatten(0, 1).float(), t.flatten()))
    else:
        cross_entropy = lambda n, w, t: F.cross_entropy(M.linear(n, M.bf16_round(w)).flatten(0, 1).float(), t.flatten())

    def loss_of(tokens):
        inp, tgt = tokens[:, :-1], tokens[:, 1:]
        n, _, loads, (cos, sin), emb = net.hidden(inp)
        main = cross_entropy(n, net.embed, tgt)
        m, _, load = net.mtp.step(*M.slots(emb, n, cos, sin), [], [])
        return main, cross_entropy(m, net.embed, tgt[:, 1:]), torch.stack(loads + [load])

    def save():
        torch.save({"model": net.state_dict(), "adam": adam.state_dict(), "state": state, "shape": dataclasses.asdict(s),
                    "muon": {f"{k[0]}x{k[1]}": v for k, v in muon.state.items()}}, ckpt + ".tmp")
        os.replace(ckpt + ".tmp", ckpt)
        json.dump(state, open(os.path.join(a.out, "log.json"), "w"))

    timing = []
    while state["steps"] is None or state["step"] < state["steps"]:
        step = state["step"]
        if state["steps"] is None and len(timing) == 40:       # skip compilation, then fix the schedule
            per = sorted(timing[5:])[len(timing[5:]) // 2]
            state["steps"] = int(a.minutes * 60 / per)
            print(f"{per * 1e3:.1f} ms per step, {a.rows * a.length / per / 1e6:.3f} M tokens/s -> {state['steps']} steps", flush=True)
        scale = rate(step / (state["steps"] or 10_000), 200 / (state["steps"] or 10_000), a.decay_from)
        started = time.time()
        main, mtp, loads = loss_of(stream.batch(step, a.rows, a.length + 1))
        (main + a.mtp_weight * mtp).backward()
        muon.step(a.lr * scale)
        for g in adam.param_groups:
            g["lr"] = a.adam_lr * scale
        adam.step()
        adam.zero_grad(set_to_none=True)
        for ps in muon.groups.values():
            for q in ps:
                q.grad = None
        with torch.no_grad():      # balance without an auxiliary loss: nudge the bias of idle experts up
            for m, load in zip(net.moe_layers(), loads):
                m.bias += 1e-3 * scale * torch.sign(s.top_k / s.experts - load)
        state["step"] += 1
        if len(timing) < 40 or step % 25 == 0:
            record = [step, main.item(), mtp.item()]
            if step % 25 == 0:
                state["log"].append(record)
            timing.append(time.time() - started)
        if step % 250 == 0 or step < 3:
            print(f"step {step} loss {record[1]:.4f} mtp {record[2]:.4f} load max {loads.max().item():.2f} "
                  f"min {loads.min().item():.2f} lr {scale:.2f} t {time.time() - begun:.0f}s", flush=True)
        if step % 1500 == 1499:
            save()
        if time.time() - begun > a.until:
            break
    state["seconds"] += time.time() - begun
    save()
    M.Layer.forward, M.MTP.step = plain      # other shapes follow: not worth compiling again
    if state["steps"] and state["step"] >= state["steps"]:
        result = evaluate(net, held, length=min(1024, s.max_positions))
        print(json.dumps(result))
        json.dump(result, open(os.path.join(a.out, "held_out.json"), "w"))
        loss_svg(state["log"], os.path.join(a.out, "loss.svg"), ["next token", "MTP"])
