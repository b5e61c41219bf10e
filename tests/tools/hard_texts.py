"""Texts that are hard to cut into tokens: all scripts, marks, emoji, code, runs of spaces, invisible characters."""
import random
import unicodedata

BLOCKS = [
    (0x20, 0x7E, 30), (0xA0, 0x24F, 8), (0x250, 0x36F, 4), (0x370, 0x3FF, 4), (0x400, 0x52F, 4), (0x531, 0x58F, 1),
    (0x591, 0x5F4, 2), (0x600, 0x6FF, 3), (0x900, 0x97F, 4), (0x980, 0x9FF, 2), (0xB80, 0xBFF, 2), (0xC00, 0xDFF, 2),
    (0xE00, 0xEFF, 2), (0xF00, 0xFFF, 1), (0x1000, 0x109F, 1), (0x10A0, 0x11FF, 2), (0x1200, 0x137F, 1),
    (0x13A0, 0x13FF, 1), (0x1780, 0x17FF, 2), (0x1E00, 0x1FFF, 3), (0x2000, 0x206F, 3), (0x2070, 0x218F, 3),
    (0x2190, 0x2BFF, 2), (0x3000, 0x30FF, 4), (0x3130, 0x318F, 1), (0x4E00, 0x9FFF, 4), (0xAC00, 0xD7A3, 3),
    (0xF900, 0xFAD9, 1), (0xFB00, 0xFB4F, 1), (0xFE00, 0xFE6F, 1), (0xFF00, 0xFFEF, 2), (0x10400, 0x1044F, 1),
    (0x1D400, 0x1D7FF, 1), (0x1F000, 0x1FAFF, 4), (0x0, 0x1F, 1),
]
PARTS = [
    "'s", "'S", "'re", "'LL", "'d", "'\u017f", "\u2019s", "it's", "THEY'RE", " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t",
    " \n", "\r", "/", "//", "...", "!", "123", "4567", "1", "12", "camelCase", "HTTPServer", "ABC", "abc", "Word",
    "e\u0301", "A\u030a", "\u0301", "\u200d", "\u200b", "\ufeff", "\u00a0", "\u3000", "👍🏽", "👨‍👩‍👧", "🏳️‍🌈", "भाभा", "ПРИВЕТмир",
    "ÅNGSTRÖMS", "각", "हिन्दी", "ǅ", "ﬁ", "ª", "ʰ", "Ⅷ", "ⓐ", "½", "²", "٣", "A" * 30, "_", "-", "\u2028",
]


def known(c):
    """Of the Unicode version that both sides know; surrogates are no characters."""
    return unicodedata.category(c) not in ("Cn", "Cs")


def text_of(dice):
    out = []
    for _ in range(dice.randint(1, 12)):
        if dice.random() < 0.4:
            out.append(dice.choice(PARTS))
            continue
        first, last, _ = dice.choices(BLOCKS, [weight for *_, weight in BLOCKS])[0]
        chars = (chr(dice.randint(first, last)) for _ in range(dice.randint(1, 4)))
        out.extend(c for c in chars if known(c))
    return "".join(out)


WRITTEN = [
    "", " ", "  ", "\n", "\n\n", "\t", "Once upon a time there was a boat.", " Once", "  two  spaces  each  ", "\ttabs\tand\r\nCRLF\r\n\r\n",
    "trailing   ", "\n\n\n  x\n", "It's what they'll say: we've, I'm, you're, he'd, isn't; IT'S WE'VE.", "o'clock 'quoted' ’typographic’",
    "1 12 123 1234 12345 123456 1234567", "3.14159 -1e10 0x1F 1,000,000 v1.2.3 2026-11-25", "camelCaseWord HTTPServer iPhone",
    "snake_case __init__ kebab-case", "def f(x):\n    return x**2 + 1  # square\n\n\nclass A:\n\tpass\n", "    def f", " x", " <h1> x",
    "<h1>Title</h1><table><tr><td>a</td></tr></table><b>x</b> <code>y</code>", "<blockquote>a</blockquote><strong>b</strong>",
    '<div class="a">&amp;</div>', "http://example.org/a/b?c=d&e=f#g user@host.net", "!!! ... ??? --- *** ((())) [{}] <<>> ## $$ ~~ ``",
    "end.  \n\n  Next", "- item\n- item\n1. one", "Ärger über Öl", "e\u0301 A\u030a n\u0303 \u1e9b\u0323", "Straße GROẞ ǅ ﬁ", "Кораблик увидел 12",
    "小船看见了大海，有3只鸟。", "船は海を見た。カタカナ々〇", "배가 바다를 123", "เรือเห็นทะเล ที่", "हिन्दी भाषा नाव", "தமிழ் மொழி", "السفينة ١٢٣", "השיר על",
    "½ ² Ⅷ ① ५६", "🙂 👍🏽 👨‍👩‍👧 🏳️‍🌈", "\u200b\u00a0\u3000\u2028x\ufeff", "a\u00a0b\u3000c\u2003d", "a\x00b\x01\x7f", "\ufffd\ue000\U000f0000",
    "▁▁the▁ ▁x", "<s></s><unk>[CLS][SEP]<mask>", "<|user|>Hello<|end|>\n", "<|im_start|>system\n", "[INST] hi [/INST]", "a" * 60, " " * 40 + "x",
    "\t" * 9 + "y", "supercalifragilisticexpialidocious antidisestablishmentarianism", "ʰᵃ ªº", "éÉé ÉA aÉ", "⺀⼀〡 !⺀", "cafe\u0301s ÀÉ",
]


def texts(count):
    """`count` texts: the written ones, then others by chance."""
    dice = random.Random(20261129)
    return [*WRITTEN, *(text_of(dice) for _ in range(count - len(WRITTEN)))][:count]
