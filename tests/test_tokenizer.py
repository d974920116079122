"""The tokenizer: the ids of OpenAI CLIP's, and input that is refused.

``data/clip_token_ids.json.xz`` holds 1,300 varied texts, the characters of Unicode 3.2 in several
contexts, and the ids that OpenAI's ``simple_tokenizer.py`` gives them (of the characters, the first
digits of the SHA-256 of their ids as JSON).
"""

import hashlib
import json
import lzma
from pathlib import Path

import numpy as np
import pytest

from hmcl_jax.backbones.tokenizer import END, START, Tokenizer

IDS = Path(__file__).parent / "data" / "clip_token_ids.json.xz"


@pytest.fixture(scope="module")
def reference():
    return json.loads(lzma.decompress(IDS.read_bytes()))


def padded(ids, context):
    return [*ids, *[0] * (context - len(ids))]


def test_ids_are_those_of_openai_clip(reference):
    found = Tokenizer()(reference["texts"])
    assert found.dtype == np.int32
    for text, row, ids in zip(reference["texts"], found, reference["ids"], strict=True):
        assert row.tolist() == padded(ids, 77), ascii(text)


def test_characters_of_unicode_3_2(reference):
    texts = reference["character_texts"]
    for text, row, known in zip(
        texts, Tokenizer(context=3000)(texts), reference["character_ids"], strict=True
    ):
        ids = json.dumps(row[: row.argmax() + 1].tolist())
        assert hashlib.sha256(ids.encode()).hexdigest()[:16] == known, ascii(text)


def test_padding_and_texts_that_are_too_long():
    ids = [320, 1125, 539, 320, 2442, 1929]
    for context in range(2, 12):
        row = Tokenizer(context)(["a photo of a small dog"])[0].tolist()
        assert row == padded([START, *ids[: context - 2], END], context)
    # A word that is cut in the middle of its tokens.
    longest = Tokenizer(40)(["a antidisestablishmentarianism"])[0]
    for context in range(2, longest.argmax() + 1):
        row = Tokenizer(context)(["a antidisestablishmentarianism"])[0]
        assert row.tolist() == [*longest[: context - 1], END]


def test_special_tokens_in_a_text():
    rows = Tokenizer(8)(["<|StartOfText|> a<|endoftext|>a", "!<|endoftext|>", ""])
    assert rows[0].tolist() == padded([START, START, 320, END, 320, END], 8)
    assert not {START, END}.intersection(rows[1, 1:6].tolist())
    assert rows[2].tolist() == padded([START, END], 8)


def test_no_texts_arrays_of_texts_and_pairs_of_surrogates():
    assert Tokenizer()([]).shape == (0, 77)
    rows = Tokenizer()(["\ud83d\ude00", "\U0001f600"])
    np.testing.assert_array_equal(rows[0], rows[1])


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["a", None], TypeError, r"texts\[1\] must be a string, got NoneType"),
        ("a dog", TypeError, r"write \[text\]"),
        (["a", "caf\udce9"], ValueError, r"texts\[1\].*surrogate '\\udce9' at position 3"),
        (["\ud83d\ude00\ude00"], ValueError, r"'\\ude00' at position 2"),
        (["\ud83d\ud83d\ude00"], ValueError, r"'\\ud83d' at position 0"),
    ],
)
def test_what_is_no_text_is_refused(texts, error, message):
    with pytest.raises(error, match=message):
        Tokenizer()(texts)
    with pytest.raises(ValueError, match="context"):
        Tokenizer(1)
