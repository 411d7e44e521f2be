"""From the lines of a template's text to those that the formatter made of them."""

from __future__ import annotations

import pytest
from lingen.emit.alignment import align
from lingen.emit.formatter import format_sources
from lingen.emit.recording import Piece
from traced import lines


def origins(raw: str, formatted: str) -> list[int | None]:
    """For each formatted line the number of the raw line that it comes from."""
    found = align([Piece(raw, "m.j2", 1, True, (), ())], formatted)
    return [origin and origin.line for origin in found]


def formatted(raw: str) -> list[tuple[str, int | None]]:
    [text] = format_sources([raw])
    return list(zip(text.split("\n"), origins(raw, text), strict=False))


def test_a_line_that_is_split_comes_from_one_line():
    arguments = ", ".join(f"argument_{i}" for i in range(20))
    raw = f"x = 1\ny = call({arguments})\nz = 1\n"
    assert {line for text, line in formatted(raw) if text.startswith(("y", "  ", ")"))} == {2}
    assert formatted(raw)[-1] == ("z = 1", 3)


def test_lines_that_are_joined_come_from_the_first():
    assert formatted("x = call(\n  1,\n  2)\ny = 1\n") == [("x = call(1, 2)", 1), ("y = 1", 4)]


def test_blank_lines_that_the_formatter_adds_or_drops_come_from_none():
    raw = "\n\nimport a\nclass A:\n\n\n    x = 1\n\n\n\n    y = 1\n"
    assert formatted(raw) == [
        ("import a", 3),
        ("", None),
        ("", None),
        ("class A:", 4),
        ("    x = 1", 7),
        ("", None),
        ("    y = 1", 11),
    ]


def test_a_closing_bracket_on_its_own_line_comes_from_its_own_line():
    raw = "x = (\n    1,\n    2,\n)\ny = f(\n    g(\n        1,\n    ),\n)\n"
    assert [line for _, line in formatted(raw)] == [1, 2, 3, 4, 5, 6, 7, 8, 9]


def test_of_two_closing_brackets_the_indentation_tells_which_one_the_formatter_made():
    arguments = ", ".join(f"argument_{i}" for i in range(12))
    found = formatted(f"x = f(\n    g({arguments})\n)\ny = 1\n")
    assert found[-3:] == [("    )", 2), (")", 3), ("y = 1", 4)]


def test_brackets_that_the_formatter_adds_come_from_the_line_they_enclose():
    long = " + ".join(f"argument_{i}" for i in range(12))
    found = formatted(f"a = 1\nif a:\n    x = {long}\nb = 1\n")
    assert [*[text.strip() for text, _ in found][:3], found[-2]] == [
        "a = 1",
        "if a:",
        "x = (",
        ("    )", 3),
    ]
    assert [line for _, line in found] == [1, 2, *[3] * (len(found) - 3), 4]


@pytest.mark.parametrize(
    "raw",
    [
        "a = 'x'\nb = \"y\"\nc = 1\n",
        "a = 'it\\'s'\nb = u'x'\nc = 1\n",
        "a = 0XFF\nb = 1E5\nc = .5\n",
        "a = ((1))\nb = (2)\nc = 1\n",
        "a = 1;\nb = 2 ; \nc = 3\n",
        "a = 1 #comment\nb = 1\nc = '\\xAB'\n",
        "a = ('x' 'y')\nb = f'x' f'{a}'\nc = 1\n",
        "a = 1 + \\\n  2\nb = 1\nc = 1\n",
        "assert(a);\nb = 1\nc = 1\n",
    ],
)
def test_what_the_formatter_rewrites_does_not_lead_astray(raw):
    found = [(text, line) for text, line in formatted(raw) if text[:1] in ("a", "b", "c")]
    assert [text[0] for text, _ in found] == ["a", "b", "c"]
    assert [raw.split("\n")[line - 1][0] for _, line in found] == ["a", "b", "c"]


def test_texts_that_part_for_good_are_followed_as_far_as_they_agree():
    assert origins("a = 1\nb = 2\n", "a = 1\nb = 2\nwholly = different\n")[:2] == [1, 2]
    assert origins("a = 1\n", "") == []
    assert origins("\n", "x\n") == [None]


def test_two_values_on_one_template_line_keep_their_keys_on_lines_of_their_own():
    long = ", ".join(f'"{letter * 30}"' for letter in "pqr")
    text = f"x = [{{{{ ir.hidden_size }}}}, {long}, {{{{ ir.eps | py }}}},]\n"
    found = lines(text)
    assert found[0] == "x = [ | m:1 |"
    assert found[1] == "64, | m:1 | hidden_size"
    assert found[-2] == "1e-06, | m:1 | eps"
    assert [row.rpartition("|")[2] for row in found[2:-2]] == ["", "", ""]
