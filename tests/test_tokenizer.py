"""The tokenizer: ids of OpenAI CLIP's, a second byte-pair encoding, and input that is refused."""

import functools
import html
import itertools
import json
import lzma
import sys
import unicodedata

import ftfy
import numpy as np
import pytest
import texts as made

from hmcl_jax.backbones import tokenizer
from hmcl_jax.backbones.tokenizer import END, MERGES, START, VOCABULARY, Tokenizer

ENDINGS = ("s", "t", "re", "ve", "m", "ll", "d")


@pytest.fixture(scope="module")
def reference():
    return json.loads(lzma.decompress(made.IDS.read_bytes()))


def padded(ids, context):
    return [*ids, *[0] * (context - len(ids))]


def test_ids_are_those_of_openai_clip(reference):
    texts = made.varied_texts()
    assert len(texts) >= 1000
    assert made.digest(texts) == reference["texts"], "the texts changed: make the ids anew"
    found = Tokenizer()(texts)
    assert found.shape == (len(texts), 77)
    assert found.dtype == np.int32
    for text, row, ids in zip(texts, found, reference["ids"], strict=True):
        assert row.tolist() == padded(ids, 77), ascii(text)


def test_characters_of_unicode_3_2_but_few_ideographs(reference):
    texts = [*made.character_texts()]
    assert made.digest(texts) == reference["character_texts"]
    found = Tokenizer(context=3000)(texts)
    for text, row, known in zip(texts, found, reference["character_ids"], strict=True):
        ids = row[: row.argmax() + 1].tolist()
        assert made.digest(ids)[:16] == known, ascii(text)


@functools.cache
def ranks():
    lines = lzma.decompress(MERGES.read_bytes()).decode().splitlines()
    return {tuple(line.split()): i for i, line in enumerate(lines)}


def cleaned(text):
    text = html.unescape(html.unescape(ftfy.fix_text(text)))
    return " ".join(text.split()).lower()


def naive_pieces(text):
    """CLIP's pattern by hand, over the categories of Unicode that Python knows."""
    at = 0
    while at < len(text):
        rest = text[at:]
        whole = [w for w in ("<|startoftext|>", "<|endoftext|>") if rest.startswith(w)]
        whole += [f"'{w}" for w in ENDINGS if rest.startswith(f"'{w}")]
        kinds = [" " if c.isspace() else unicodedata.category(c)[0] for c in rest]
        if whole:
            end = len(whole[0])
        elif kinds[0] == "L":
            end = next((i for i, kind in enumerate(kinds) if kind != "L"), len(rest))
        elif kinds[0] in " N":
            end = 1
        else:
            end = next((i for i, kind in enumerate(kinds) if kind in " LN"), len(rest))
        if kinds[0] != " ":
            yield rest[:end]
        at += end


@functools.cache
def naive_alphabet():
    """The letter of every byte: itself if it can be seen; and the letters in the order of ids."""
    letter = {b: chr(b) for b in range(256) if chr(b).isprintable() and b != ord(" ")}
    for b in range(256):
        letter.setdefault(b, chr(256 + sum(ord(c) > 255 for c in letter.values())))
    return letter, [*letter.values()]


def naive_ids(text):
    """The best pair is merged again and again."""
    letter, names = naive_alphabet()
    ids = [START]
    for piece in naive_pieces(cleaned(text)):
        if piece in ("<|startoftext|>", "<|endoftext|>"):
            ids.append(START if "start" in piece else END)
            continue
        word = [letter[b] for b in piece.encode()]
        word[-1] += "</w>"
        while True:
            pairs = [
                (ranks()[p], i) for i, p in enumerate(itertools.pairwise(word)) if p in ranks()
            ]
            if not pairs:
                break
            _, i = min(pairs)
            word[i : i + 2] = [word[i] + word[i + 1]]
        ids += [token_id(token, names) for token in word]
    return [*ids, END]


@functools.cache
def joined():
    return {"".join(pair): i for pair, i in ranks().items()}


def token_id(token, names):
    if token in joined():
        return 512 + joined()[token]
    return names.index(token.removesuffix("</w>")) + 256 * token.endswith("</w>")


def test_a_naive_byte_pair_encoding_agrees():
    strange = ("\u017f", "\u0345")  # what is special about them is in the ids of CLIP only
    texts = [t for t in made.varied_texts()[::3] if not any(c in cleaned(t) for c in strange)]
    assert len(texts) > 300
    context = 1000
    for text, row in zip(texts, Tokenizer(context)(texts), strict=True):
        assert row.tolist() == padded(naive_ids(text), context), ascii(text)


def test_the_vocabulary_is_whole():
    assert len(ranks()) == len(joined()) == VOCABULARY - 512 - 2
    merge = tokenizer._machinery()[2]
    symbols = tokenizer._alphabet()
    assert len({*symbols}) == 256
    assert [merge(symbol)[0].id for symbol in symbols] == list(range(256, 512))


def test_padding_and_texts_that_are_too_long():
    text = "a photo of a small dog"
    ids = [320, 1125, 539, 320, 2442, 1929]
    for context in range(2, 12):
        row = Tokenizer(context)([text])[0].tolist()
        assert row == padded([START, *ids[: context - 2], END], context)
    # A word that is cut in the middle of its tokens.
    longest = Tokenizer(40)(["a antidisestablishmentarianism"])[0]
    count = int(longest.argmax())
    for context in range(2, count + 1):
        row = Tokenizer(context)(["a antidisestablishmentarianism"])[0]
        assert row.tolist() == [*longest[: context - 1], END]


def test_special_tokens_in_a_text():
    rows = Tokenizer(8)(["<|StartOfText|> a<|endoftext|>a", "!<|endoftext|>", ""])
    assert rows[0].tolist() == padded([START, START, 320, END, 320, END], 8)
    assert not {START, END}.intersection(rows[1, 1:6].tolist())
    assert rows[2].tolist() == padded([START, END], 8)


def test_no_texts_and_arrays_of_texts():
    assert Tokenizer()([]).shape == (0, 77)
    rows = Tokenizer()(np.array(["a dog", "a cat"]))
    np.testing.assert_array_equal(rows, Tokenizer()(("a dog", "a cat")))


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["a", None], TypeError, r"texts\[1\] must be a string, got NoneType"),
        (["a", "b", b"c"], TypeError, r"texts\[2\] must be a string, got bytes; decode it"),
        ([3.5], TypeError, r"texts\[0\] must be a string, got float"),
        ("a dog", TypeError, r"sequence of strings, got one str; write \[text\]"),
        (["a", "caf\udce9"], ValueError, r"texts\[1\].*surrogate '\\udce9' at position 3"),
        (["\ud83d!"], ValueError, r"texts\[0\].*'\\ud83d' at position 0"),
        (["\ud83d\ude00\ude00"], ValueError, r"'\\ude00' at position 2"),
        (["\ud83d\ud83d\ude00"], ValueError, r"'\\ud83d' at position 0"),
    ],
)
def test_what_is_no_text_is_refused(texts, error, message):
    with pytest.raises(error, match=message):
        Tokenizer()(texts)


def test_pairs_of_surrogates_are_joined():
    rows = Tokenizer()(["\ud83d\ude00", "\U0001f600"])
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize("context", [1, 0, -3, 2.5, True, None])
def test_context_must_be_a_length(context):
    with pytest.raises((TypeError, ValueError), match="context"):
        Tokenizer(context)


def test_the_vocabulary_is_read_once(monkeypatch):
    Tokenizer()
    monkeypatch.setattr(tokenizer, "MERGES", None)
    assert Tokenizer(5)(["a dog"])[0].tolist() == [START, 320, 1929, END, 0]


@pytest.mark.parametrize("package", ["ftfy", "tokenizers"])
def test_a_missing_package_is_named(package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    tokenizer._machinery.cache_clear()
    with pytest.raises(ImportError, match=rf"{package}.*hmcl_jax\[backbones\]"):
        Tokenizer()
