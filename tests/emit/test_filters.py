from __future__ import annotations

import enum
import math

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lingen.emit.filters import bytes_text, ident, printable, py

leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=12,
)


@given(values)
def test_reading_back_what_py_wrote_gives_the_same_value(value):
    back = eval(py(value))
    assert back == value
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"),
        (True, "True"),
        (1e-6, "1e-06"),
        (-0.0, "-0.0"),
        (math.inf, 'float("inf")'),
        ((), "()"),
        ((1,), "(1,)"),
        ([1, "a"], '[1, "a"]'),
        ({"b": 1, "a": (None,)}, '{"b": 1, "a": (None,)}'),
        ("it's", '"it\'s"'),
        ('say "no"\n', '"say \\"no\\"\\n"'),
        ("a\\b\x00\u202e", '"a\\\\b\\x00\\u202e"'),
        ("{{ ü }}", '"{{ ü }}"'),
    ],
)
def test_py_writes(value, text):
    assert py(value) == text


def test_py_writes_an_enum_member_as_its_value():
    assert py(enum.StrEnum("Kind", {"MLA": "mla"}).MLA) == '"mla"'
    assert py(enum.Enum("Size", {"BIG": 8}).BIG) == "8"


@pytest.mark.parametrize("value", [{1, 2}, frozenset(), object(), b"x", 1j, [object()]])
def test_py_refuses_what_has_no_order_or_no_source_form(value):
    with pytest.raises(TypeError, match="py cannot write"):
        py(value)


def test_py_of_an_undefined_names_the_variable():
    with pytest.raises(jinja2.UndefinedError, match="'head_dim' is undefined"):
        py(jinja2.StrictUndefined(name="head_dim"))


def test_ident_replaces_dashes_and_dots():
    assert ident("ling-2.6-1t") == "ling_2_6_1t"


@pytest.mark.parametrize("value", ["class", "2fast", "a b", "", "x'"])
def test_ident_refuses_what_is_no_identifier(value):
    with pytest.raises(ValueError, match="does not make a Python identifier"):
        ident(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (56 * 2**20, "56 MiB"),
        (3 * 2**29, "1.5 GiB"),
        (2**30 + 1, "1.0 GiB"),
        (2**20 - 1, "1.0 MiB"),
        (5000 * 2**50, "5000 PiB"),
    ],
)
def test_bytes_writes_binary_units(value, text):
    assert bytes_text(value) == text


@pytest.mark.parametrize("value", [-1, True, 1.5, "8"])
def test_bytes_refuses_what_is_no_count(value):
    with pytest.raises(TypeError, match="bytes needs a count of bytes"):
        bytes_text(value)


@pytest.mark.parametrize("value", ["x", 7, enum.StrEnum("Kind", {"MLA": "mla"}).MLA])
def test_strings_and_integers_print_without_a_filter(value):
    assert printable(value) == value


@pytest.mark.parametrize(
    "value", [True, 1.5, None, (), [], {}, enum.Enum("Kind", {"A": "a"}, type=str).A]
)
def test_anything_else_needs_a_filter(value):
    with pytest.raises(TypeError, match="printed without a filter"):
        printable(value)
