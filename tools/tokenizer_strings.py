# SPDX-License-Identifier: Apache-2.0
"""Strings that tokenizers get wrong, made from a seed: make_tokenizer_goldens.py commits some, compare_tokenizer.py
runs many. A string is bytes; what is no valid UTF-8 is meant to be replaced as bytes.decode(errors='replace') does."""
import random

PROSE = """The quick brown fox jumps over the lazy dog. It's 3:45 o'clock; they're late, we've waited, I'd say he'll come.
“Typographic quotes” — dashes – and ellipses… Don’t STOP! E-mail me@example.com or see https://example.org/a?b=c&d=%20#e.
Größenwahn, naïve café, señor, Žluťoučký kůň, İstanbul, ﬁne ﬂuﬀ, ǅungla, ʼn, Straße, ÅNGSTRÖM, e\u0301a\u0308o\u0302.
Съешь же ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. הַיֶּלֶד הלך. السَّلامُ عليكم ١٢٣
नमस्ते दुनिया १२३ ภาษาไทยไม่มีช่องว่าง မြန်မာ ខ្មែរ ქართული Հայերեն ᏣᎳᎩ ᠮᠣᠩᠭᠣᠯ አማርኛ தமிழ் తెలుగు සිංහල"""
CJK = """人工智能是研究、开发用于模拟、延伸和扩展人的智能的理论。２０２４年，我们（大家）一起去了北京！「你好」『世界』々〆〇㐀㒨𠀀𠮷𪚥
吾輩は猫である。名前はまだ無い。カタカナとひらがなと漢字。ｶﾀｶﾅ ー・ヽヾゝゞ ㍿㌔ 안녕하세요 세계 한국어 ㄱㄴㄷ 中文English混排123数字。"""
CODE = """#include <vector>\nint main(int argc, char** argv) {\n\tfor (size_t i = 0; i < 10; ++i) {\r\n    v[i] += x->y * 0x1F; // ok?\n\t}\n}
def f(self, x: dict[str, int] = {}) -> None:\n    return {k: v**2 for k, v in x.items() if not k.startswith("_")}  # 1e-10
<div class="a b" id='c'>&nbsp;</div>\n\n\n\nSELECT * FROM t WHERE a<>b AND c!=d;\n$ ls -la | grep '^d' && echo "$HOME"\n\\frac{a}{b}_{i}^{2}
{"key": [1, 2.5, null, true], "nested": {"a": "b\\n"}}\n===== ----- ***** ~~~~~ ````` ////// :: ... !!! ??? @@ ## %% ^^ && (( )) [[ ]]"""
EMOJI = ["😀", "👩‍👩‍👧‍👦", "🏳️‍🌈", "🇩🇪🇯🇵", "👍🏽", "❤️", "☺", "1️⃣", "🧑🏿‍🚀", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "🫨", "🪿", "©️", "♂️"]
SPACES = [" ", "  ", "\t", "\n", "\r\n", "\r", "\x0b", "\x0c", "\x85", "\xa0", "\u1680", "\u180e", "\u2003", "\u2028", "\u2029",
          "\u200b", "\u202f", "\u205f", "\u2060", "\u3000", "\ufeff", "\x1c", "\x1f"]
CONTRACTIONS = ["'s", "'S", "'t", "'RE", "'ve", "'M", "'ll", "'LL", "'d", "'ſ", "’s", "''s", "'x"]
SPECIAL = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>", "<think>",
           "</think>", "<｜tool▁calls▁begin｜>", "<｜fim▁hole｜>", "｜DSML｜", "<｜", "｜>", "<think", "<|im_end|>", "<|im_user|>",
           "[BOS]", "[EOS]", "[EOT]", "[PAD]", "<|im_middle|>", "<|reserved_token_1300|>", "<<think>>", "[[EOS]]", "<｜place▁holder▁no▁1｜>"]
INVALID = [b"\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80",
           b"\xe0\x80\xaf", b"\xf0\x80\x80", b"\xe2\x28\xa1", b"\xfe\xff", b"\xf1\x80\xc3\x28", b"\xc3\xc3\xa9"]


def _slice(rng, text, longest=60):
    begin = rng.randrange(len(text))
    return text[begin:begin + rng.randrange(1, longest)]


def _code_points(rng, count):
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x20000), (0x20000, 0x33480),
              (0x33480, 0xE0000), (0xE0000, 0xF0000), (0xF0000, 0x110000)]
    return "".join(chr(rng.randrange(*rng.choice(planes))) for _ in range(count))


def _neighbours(rng):
    base = rng.randrange(0x110000 - 0x840)
    return "".join(chr(c) for c in (base + rng.randrange(0x40) for _ in range(rng.randrange(1, 24)))
                   if not 0xD800 <= c < 0xE000)


def _piece(rng):
    kind = rng.randrange(16)
    if kind == 0: return _slice(rng, PROSE)
    if kind == 1: return _slice(rng, CJK, 40)
    if kind == 2: return _slice(rng, CODE)
    if kind == 3: return "".join(rng.choice(EMOJI) for _ in range(rng.randrange(1, 5)))
    if kind == 4: return "".join(rng.choice(SPACES) for _ in range(rng.randrange(1, 9)))
    if kind == 5: return rng.choice([" ", "\n", "\t", "\r\n"]) * rng.randrange(1, 40)
    if kind == 6: return "".join(rng.choice("0123456789٣५๓𝟗½Ⅷ²〇") for _ in range(rng.randrange(1, 14)))
    if kind == 7: return rng.choice(["", "I", "they", "中", "1"]) + rng.choice(CONTRACTIONS)
    if kind == 8: return _code_points(rng, rng.randrange(1, 12))
    if kind == 9: return _neighbours(rng)
    if kind == 10: return rng.choice(SPECIAL)
    if kind == 11: return rng.choice("aeiouAnक한あ ") + "".join(chr(rng.randrange(0x300, 0x370)) for _ in range(rng.randrange(1, 6)))
    if kind == 12: return "".join(rng.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~。，！？「」…—‘’") for _ in range(rng.randrange(1, 12)))
    if kind == 13: return "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCXYZ_") for _ in range(rng.randrange(1, 90)))
    if kind == 14: return rng.choice(PROSE.split()) + " "
    return rng.choice(INVALID)


def make_strings(seed, count, longest=13):
    """count byte strings of up to `longest` pieces, the same for the same seed."""
    rng = random.Random(seed)
    strings = [b"", b" ", b"\n", b"a", b"\x00", "\ufeff".encode()]
    while len(strings) < count:
        pieces = (_piece(rng) for _ in range(min(longest, rng.choice([1, 1, 2, 3, 5, 8, 13]))))
        strings.append(b"".join(p if isinstance(p, bytes) else p.encode() for p in pieces))
    return strings[:count]


def all_code_points(before="", after=""):
    """One string per 256 code points, each code point between `before` and `after`."""
    for page in range(0, 0x110000, 256):
        text = "".join(before + chr(c) + after for c in range(page, page + 256) if not 0xD800 <= c < 0xE000)
        if text:
            yield text.encode()
