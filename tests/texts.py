"""Varied texts for the tokenizer, the same everywhere, and the ids that OpenAI CLIP gives them.

The ids are in ``data/clip_token_ids.json.xz``. To make them anew, with the packages ftfy and regex
and with ``clip/simple_tokenizer.py`` and its vocabulary, as OpenAI published them:
``python tests/texts.py clip/simple_tokenizer.py``.
"""

import hashlib
import html
import json
import lzma
import random
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

IDS = Path(__file__).with_name("data") / "clip_token_ids.json.xz"
CONTEXT = 77

PLAIN = """
a the photo of itap picture Dog CAT zebra running blue sky Eiffel Tower jekyll hyphen-ated
under_score e-mail@example.com http://t.co/abc #tag @user antidisestablishmentarianism xkcd C++
U.S.A. rock'n'roll O'Neill naive semi;colon (brackets) [square] {curly} 50% $3.99 1,024 3.14159
2e-5 42nd snow-covered ... ?! -- / \\ | ~ ^ * = + < > "quoted" `code` porn : food craft
"""
WORDS = PLAIN.split()
SCRIPTS = {
    "latin": (0xC0, 0x250),
    "greek": (0x391, 0x3CE),
    "polytonic": (0x1F00, 0x1F15),
    "cyrillic": (0x410, 0x450),
    "armenian": (0x531, 0x556),
    "hebrew": (0x5D0, 0x5EA),
    "arabic": (0x621, 0x652),
    "devanagari": (0x905, 0x939),
    "tamil": (0xB85, 0xB8A),
    "thai": (0xE01, 0xE3A),
    "georgian": (0x10D0, 0x10F6),
    "ethiopic": (0x1200, 0x1206),
    "cherokee": (0x13A0, 0x13F4),
    "kana": (0x3041, 0x30FA),
    "han": (0x4E00, 0x9FA5),
    "hangul": (0xAC00, 0xD7A3),
    "halfwidth": (0xFF01, 0xFF9F),
    "mathematical": (0x1D400, 0x1D454),
}
APOSTROPHES = "'\u2019\u2018\u02bc\u02b9\u00b4`\uff07\u2032"
ENDINGS = ["s", "t", "re", "ve", "m", "ll", "d", "S", "LL", "\u017f", "x", "sd", "", "st", "r"]
DIGITS = "0123456789\u0660\u0669\u0967\uff11\u00b2\u00b9\u00bd\u2153\u2160\u2179\u2460\u3007\u2080"
MARKS = "\u0300\u0301\u0308\u0323\u0327\u0331\u0345\u034f\u0488\u05b0\u064b\u093c\u20dd\u3099\ufe0f"
SPACES = (
    "\t\n\r\x0b\x0c\x1c\x1d\x1e\x1f \x85\xa0\u1680\u180e\u2000\u2003\u2009\u200a\u200b\u200c\u200d"
    "\u2028\u2029\u202f\u205f\u2060\u3000\ufeff"
)
EMOJI = [
    "\U0001f600",
    "\U0001f9d1\u200d\U0001f680",
    "\U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f",
    "1\ufe0f\u20e3",
    "\u2603",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\U0001f3f4\U000e0067\U000e0062\U000e007f",
    "\ud83d\ude00",  # a pair of surrogates, which ftfy joins
]
ESCAPED = """
&amp; &lt; &gt; &quot; &apos; &#39; &#x27; &nbsp; &eacute; &EACUTE; &hellip; &copy &notit;
&#128512; &#x1F600; &#x80; &#xD800; &#0; &#28; &#x1F; &#12; &bogus; &amp &;  & &# &#x; &AMP; &rarr;
&frac12; &#8217;s &lt;|endoftext|&gt; &Auml;rger &ngE; &zwj; &#x345;
"""
ENTITIES = ESCAPED.split()
SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|STARTOFTEXT|>", "<|EndOfText|>"]
SPECIALS += ["<|\u017ftartoftext|>", "<start_of_text>", "<|endoftext", "endoftext|>", "<||>"]
EMPTY = [
    "",
    " ",
    "\n\t ",
    "\x00",
    "\u200b",
    "&nbsp;",
    "\ufeff",
    "&#x345;",
    "\u0345",
    "&",
    "\x1b[31m",
]


class Chooser:
    """Choices by ``random.Random.random``, whose numbers Python promises never to change."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def of(self, options):
        return options[self.below(len(options))]

    def some(self, options, low: int, high: int) -> list:
        return [self.of(options) for _ in range(low + self.below(high - low + 1))]


def characters() -> list[str]:
    """The characters of Unicode 3.2, in which no two versions of Python differ."""
    known = unicodedata.ucd_3_2_0
    return [c for c in map(chr, range(0x110000)) if known.category(c) not in ("Cn", "Cs", "Co")]


def _word(choose: Chooser, script: str) -> str:
    low, high = SCRIPTS[script]
    return "".join(chr(low + choose.below(high - low)) for _ in range(1 + choose.below(6)))


def _sentence(choose: Chooser, low: int = 3, high: int = 14) -> str:
    return " ".join(choose.some(WORDS, low, high)) + choose.of([".", "!", "", "?", " ."])


def _mixed(choose: Chooser, extra, glue=("", " ", "", "a")) -> str:
    """A short sentence with extra characters in it."""
    parts = [_sentence(choose, 1, 4)]
    for each in choose.some(extra, 1, 6):
        parts += [choose.of(glue), each, choose.of(glue), choose.of(WORDS)]
    return "".join(parts)


def _garbled(choose: Chooser) -> str:
    """A text that was read in the wrong encoding, once or twice."""
    text = " ".join(_word(choose, choose.of(["latin", "cyrillic", "kana"])) for _ in range(3))
    text = choose.of(
        [text, f"caf\u00e9 {choose.of(EMOJI[:4])}", "it\u2019s \u201cquoted\u201d \u2014"]
    )
    for encoding in choose.some(["latin-1", "cp1252", "mac-roman", "cp437", "cp1251"], 1, 2):
        try:
            text = text.encode("utf8").decode(encoding)
        except UnicodeError:
            break
    return f"{choose.of(WORDS)} {text}"


def _escaped(choose: Chooser) -> str:
    text = _mixed(choose, ENTITIES, ("", " "))
    for _ in range(choose.below(4)):
        text = html.escape(text)
    return choose.of(["", "<b>"]) + text  # ftfy leaves entities alone where there is a tag


def _long(choose: Chooser) -> str:
    kind = choose.below(4)
    if kind == 0:
        return _sentence(choose, 60, 200)
    if kind == 1:
        return "".join(choose.some("abcdefghijklmnopqrstuvwxyz", 200, 600))
    if kind == 2:
        return "".join(choose.some(EMOJI, 30, 60))
    return " ".join(_word(choose, "han") for _ in range(40))


def _kinds(choose: Chooser, known: list[str]) -> list[str]:
    """One text of every kind."""
    script = choose.of([*SCRIPTS])
    words = " ".join(_word(choose, script) for _ in range(1 + choose.below(6)))
    endings = [choose.of(WORDS) + choose.of(APOSTROPHES) + choose.of(ENDINGS) for _ in range(5)]
    return [
        _sentence(choose),
        words,
        unicodedata.normalize("NFD", words),
        choose.of([" ", "", "'"]).join(endings),
        _mixed(choose, DIGITS),
        _mixed(choose, MARKS),
        _mixed(choose, SPACES),
        _mixed(choose, EMOJI),
        _mixed(choose, SPECIALS, ("", " ", "\t", "!", "a", "|")),
        _mixed(choose, [chr(i) for i in (*range(0x20), *range(0x7F, 0xA0))]),
        _escaped(choose),
        _garbled(choose),
        "".join(choose.some(known, 1, 40)),
    ]


def varied_texts() -> list[str]:
    """About 1,300 texts."""
    choose, known = Chooser(7), characters()
    made = [text for _ in range(90) for text in _kinds(choose, known)]
    made += [_long(choose) for _ in range(40)]
    made += ["a " * n for n in range(CONTEXT - 4, CONTEXT + 3)]
    made += ["a " * n + "antidisestablishmentarianism" for n in range(CONTEXT - 8, CONTEXT)]
    return [*made, *EMPTY]


def character_texts() -> Iterator[str]:
    """Characters of Unicode 3.2, few of the many ideographs, each in several contexts."""

    def many(c: str) -> bool:
        return "\u3400" <= c <= "\ud7a3" or c >= "\U00020000"

    known = [c for i, c in enumerate(characters()) if not many(c) or i % 40 == 0]
    for start in range(0, len(known), 64):
        yield " ".join(f"a{c}b {c}{c} !{c}1 '{c}" for c in known[start : start + 64])


def digest(rows) -> str:
    """SHA-256 of texts or of lists of ids."""
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _make(reference: str) -> None:
    import importlib.metadata
    import importlib.util

    spec = importlib.util.spec_from_file_location("simple_tokenizer", reference)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    encode = module.SimpleTokenizer().encode
    made = varied_texts()
    start, end = 49406, 49407
    rows = [[start, *encode(text), end] for text in made]
    rows = [row if len(row) <= CONTEXT else [*row[: CONTEXT - 1], end] for row in rows]
    about = {name: importlib.metadata.version(name) for name in ("ftfy", "regex")}
    found = {
        "made_with": {"python": sys.version.split()[0], **about},
        "texts": digest(made),
        "ids": rows,
        "character_texts": digest([*character_texts()]),
        "character_ids": [digest([start, *encode(t), end])[:16] for t in character_texts()],
    }
    IDS.parent.mkdir(exist_ok=True)
    IDS.write_bytes(lzma.compress(json.dumps(found, separators=(",", ":")).encode()))
    print(len(rows), "texts,", len(found["character_ids"]), "of characters,", IDS.stat().st_size)


if __name__ == "__main__":
    _make(sys.argv[1])
