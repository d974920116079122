"""What does not count as a mutant, and that the tests of the mutants exist."""

from pathlib import Path

import mutants

ROOT = Path(__file__).resolve().parent.parent
SOURCE = """\
def f(x: int | None, *, y=2) -> int | str:
    z: int | None = x
    if y != 2:
        raise ValueError(f"y must be 2, got {y + 1}; "
                         f"z is {z - 1}.")
    return y | (x == z)
"""


def test_what_counts_as_a_mutant():
    counts = mutants.counted(SOURCE)
    lines = SOURCE.split("\n")

    def at(line, text, operator="ReplaceBinaryOperator_BitOr_Add"):
        column = lines[line - 1].index(text)
        return counts(operator, (line, column), (line, column + len(text)))

    # Annotations, texts of errors, and what is not a product.
    for place in ((1, "|"), (2, "int | None"), (4, "+"), (5, "-"), (1, "*")):
        assert not at(*place)
    assert at(6, "|")
    assert at(1, "2", "NumberReplacer")
    assert at(3, "!=", "ReplaceComparisonOperator_NotEq_Lt")
    assert not at(3, "!=", "ReplaceComparisonOperator_NotEq_IsNot")
    assert at(6, "==", "ReplaceComparisonOperator_Eq_Is")


def test_every_test_that_is_named_is_there():
    for stages in mutants.TESTS.values():
        for name in (*stages["first"], *stages["then"]):
            path, _, test = name.removeprefix("--deselect=").partition("::")
            assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text("utf8")
