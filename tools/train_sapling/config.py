# SPDX-License-Identifier: Apache-2.0
"""The shapes of Sapling and of its EAGLE3 head, in one place; every stage reads them from here."""
from dataclasses import dataclass, asdict

BOS, EOS, USER, ASSISTANT, PAD = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                                  "<｜Assistant｜>", "<｜▁pad▁｜>")
SPECIALS = [BOS, EOS, PAD, USER, ASSISTANT]      # ids 0..4
BOS_ID, EOS_ID, PAD_ID, USER_ID, ASSISTANT_ID = range(5)


@dataclass(frozen=True)
class Shape:
    vocab: int = 4096
    hidden: int = 512
    layers: int = 8              # target layers; the MTP layer comes after them
    dense_layers: int = 4        # first_k_dense_replace
    heads: int = 4
    q_rank: int = 256            # q_lora_rank
    kv_rank: int = 512
    nope: int = 128
    rope: int = 64
    v: int = 128
    intermediate: int = 1280     # dense layers
    experts: int = 8
    top_k: int = 2
    expert_width: int = 128
    routed_scale: float = 2.0
    theta: float = 10000.0
    eps: float = 1e-6            # transformers fixes 1e-6 for kv_a_layernorm, so all norms use it
    max_positions: int = 2048
    # EAGLE3 head
    taps: tuple = (2, 5, 7)      # aux id i = residual stream entering layer i
    draft_vocab: int = 3072
    draft_intermediate: int = 768


TINY = Shape(vocab=512, hidden=128, layers=3, dense_layers=1, heads=2, q_rank=64, intermediate=256,
             experts=4, expert_width=128, taps=(0, 1, 2), draft_vocab=256, draft_intermediate=128, max_positions=256)


def shape_from(d):
    d = dict(d)
    d["taps"] = tuple(d["taps"])
    return Shape(**d)


def costs(s: Shape):
    """Active parameters per token of a target step and of one draft step, and c = draft / target."""
    def attn(width):
        return (width * s.q_rank + s.q_rank * s.heads * (s.nope + s.rope) + width * (s.kv_rank + s.rope)
                + s.kv_rank * s.heads * (s.nope + s.v) + s.heads * s.v * s.hidden)
    dense = 3 * s.hidden * s.intermediate
    moe = 3 * s.hidden * s.expert_width * (s.top_k + 1) + s.hidden * s.experts
    head = s.vocab * s.hidden
    target = s.layers * attn(s.hidden) + s.dense_layers * dense + (s.layers - s.dense_layers) * moe + head
    mtp = attn(s.hidden) + moe + 2 * s.hidden ** 2 + head
    eagle = attn(2 * s.hidden) + 3 * s.hidden * s.draft_intermediate + s.draft_vocab * s.hidden
    return {"target": target, "mtp": mtp, "eagle3": eagle, "eagle3_fc": 3 * s.hidden ** 2,
            "c_mtp": mtp / target, "c_eagle3": eagle / target}


if __name__ == "__main__":
    print(costs(Shape()))
