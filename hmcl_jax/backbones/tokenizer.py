"""Texts to token ids: the byte-pair encoding of OpenAI CLIP, which MERU and HyCoCLIP also use.

The ids are those of CLIP's own tokenizer, but the work is done by the ``tokenizers`` library. The
merges are in ``clip_merges.txt.xz`` beside this file (MIT licence, see DATA_LICENSES.md).

As in CLIP's tokenizer, ``<|startoftext|>`` and ``<|endoftext|>`` in a text are the ids 49406 and
49407, unless other punctuation is right before them, and U+0345, a Greek iota subscript that could
not be composed, is left out. The text tower pools at the first end, and ignores the rest.

Lone surrogates, which are no text, are refused; CLIP's tokenizer makes U+FFFD of them. Letters and
digits are those of Unicode 16 (``tokenizers`` 0.23); letters and digits of later versions, which
the ``regex`` package of CLIP's tokenizer may know, count as punctuation here.
"""

import functools
import html
import lzma
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ftfy
import numpy as np
import tokenizers
from tokenizers import models, pre_tokenizers

from hmcl_jax import _checks

VOCABULARY = 49408
START, END = 49406, 49407
SPECIAL = {"<|startoftext|>": START, "<|endoftext|>": END}
MERGES = Path(__file__).with_name("clip_merges.txt.xz")
# CLIP's pattern ignores case. Texts are in lower case, so this concerns two characters only: the
# long s (U+017F), another form of s, and U+0345, a mark that is also a form of the letter iota and
# therefore in none of the classes.
PIECES = (
    "<\\|[s\u017f]tartoftext\\|>|<\\|endoftext\\|>|'[s\u017f]|'t|'re|'ve|'m|'ll|'d"
    "|\\p{L}+|\\p{N}|[^\\s\\p{L}\\p{N}\u0345]+"
)
LONE_SURROGATE = re.compile(
    "[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]"
)


class Tokenizer:
    """Token ids of texts, as OpenAI CLIP gives them.

    A text is repaired (``ftfy``), its HTML entities are resolved twice, white space is collapsed,
    letters are made small. Its ids are put between 49406 and 49407 and followed by zeros, up to the
    length `context`; of a text that is too long, the first ids are kept, and 49407 at the end.

    Example:
      >>> from hmcl_jax.backbones.tokenizer import Tokenizer
      >>> Tokenizer(context=8)(["A photo of a dog.", ""])
      array([[49406,   320,  1125,   539,   320,  1929,   269, 49407],
             [49406, 49407,     0,     0,     0,     0,     0,     0]], dtype=int32)
    """

    def __init__(self, context: int = 77) -> None:
        _checks.integer("context", context, 2)
        self.context = int(context)

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Token ids of n strings, int32, shape ``(n, context)``."""
        if isinstance(texts, str | bytes):
            raise TypeError(f"texts must be a list of strings, got {texts!r}; write [text].")
        rows = np.zeros((len(texts), self.context), np.int32)
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise TypeError(f"texts[{row}] must be a string, got {type(text).__name__}.")
            if lone := LONE_SURROGATE.search(text):
                raise ValueError(
                    f"texts[{row}] holds the lone surrogate {lone.group()!r} at position "
                    f"{lone.start()}, half a character; read its source in the right encoding."
                )
            ids = [START]
            for piece in _pieces(text):
                ids += _ids(piece)
                if len(ids) >= self.context:
                    break
            ids = [*ids[: self.context - 1], END]
            rows[row, : len(ids)] = ids
        return rows


def _pieces(text: str) -> list[str]:
    """Words, digits and runs of other characters; their bytes in CLIP's alphabet."""
    split, _ = _pipeline()
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return [piece for piece, _ in split(" ".join(text.split()).lower())]


@functools.lru_cache(maxsize=2**16)
def _ids(piece: str) -> tuple[int, ...]:
    if piece in SPECIAL:
        return (SPECIAL[piece],)
    _, merge = _pipeline()
    return tuple(token.id for token in merge(piece))


def _alphabet() -> list[str]:
    """One visible character for every byte, in the order of CLIP's ids."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(byte) for byte in visible] + [chr(0x100 + i) for i in range(256 - len(visible))]


@functools.lru_cache(maxsize=1)
def _pipeline() -> tuple[Any, Any]:
    """Functions that split a text into pieces, and merge a piece into tokens."""
    with lzma.open(MERGES, "rt", encoding="utf8") as lines:
        merges = [(left, right) for left, right in map(str.split, lines)]
    alphabet = _alphabet()
    tokens = [*alphabet, *(f"{symbol}</w>" for symbol in alphabet), *map("".join, merges)]
    model = models.BPE(
        {token: i for i, token in enumerate([*tokens, *SPECIAL])},
        merges,
        end_of_word_suffix="</w>",
    )
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PIECES), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return splitter.pre_tokenize_str, model.tokenize
