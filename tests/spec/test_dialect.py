"""The YAML dialect: what a spelling means, what is refused, and that nothing else is raised."""

import math
import os
import time
import tracemalloc
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from lingen.errors import SpecError
from lingen.spec import dump_yaml, load_spec, load_spec_text
from lingen.spec.dialect import parse
from lingen.spec.nodes import plain
from lingen.spec.scalars import BadScalar, resolve_plain
from lingen.spec.source import MAX_FILE_BYTES, Unreadable, decode

FLASH = Path(__file__).parent.parent.parent / "specs" / "ling-2.6-flash.yaml"

SPELLINGS = {
    "1e-6": 1e-6,
    "1e+6": 1e6,
    "6e6": 6e6,
    "6E6": 6e6,
    ".9": 0.9,
    "1.0e-6": 1e-6,
    "-1e-6": -1e-6,
    "+.5": 0.5,
    "5.": 5.0,
    "0.5": 0.5,
    "-0.0": 0.0,
    "0": 0,
    "-0": 0,
    "+8": 8,
    "8": 8,
    "-1": -1,
    "6000000": 6000000,
    "8.0": 8.0,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
    "null": None,
    "Null": None,
    "NULL": None,
    "~": None,
    "": None,
    "tRUE": "tRUE",
    "nULL": "nULL",
    "yes": "yes",
    "no": "no",
    "on": "on",
    "off": "off",
    "Yes": "Yes",
    "y": "y",
    "0x1F": "0x1F",
    "0o17": "0o17",
    "0b11": "0b11",
    "1_000": "1_000",
    "190:20:30": "190:20:30",
    "12:30": "12:30",
    "2001-12-14": "2001-12-14",
    "1e": "1e",
    "e6": "e6",
    ".": ".",
    "+": "+",
    "-": "-",
    ".e5": ".e5",
    "1e5.0": "1e5.0",
    "1.2.3": "1.2.3",
    "١٢": "١٢",
    "=": "=",
    "inf": "inf",
    "nan": "nan",
    "Infinity": "Infinity",
}
REFUSED_SPELLINGS = [
    "0123", "-01", "00", "00.5", "08", "01e3", ".inf", "-.inf", "+.INF", ".Inf", ".nan", ".NaN",
    ".NAN", "1e999", "-1e999", "1e-999", "1" * 41, "0." + "1" * 5000, "1" * 5000,
]  # fmt: skip


@pytest.mark.parametrize("text", SPELLINGS, ids=repr)
def test_spelling_has_the_value_of_yaml_1_2(text):
    value = resolve_plain(text)
    assert value == SPELLINGS[text] and type(value) is type(SPELLINGS[text])
    assert repr(value) == repr(SPELLINGS[text]), "-0.0 and 0.0 differ in the hash"


@pytest.mark.parametrize("text", REFUSED_SPELLINGS, ids=lambda text: text[:12])
def test_spelling_is_refused_with_what_would_be_right(text):
    value = resolve_plain(text)
    assert isinstance(value, BadScalar) and value.expected
    root, problems = parse(f"moe:\n  n_group: {text}\n", "s.yaml")
    assert root is not None
    assert [str(problem.position) for problem in problems] == ["s.yaml:2:12"]
    assert problems[0].key == "moe.n_group"


@pytest.mark.parametrize("text", ['"8"', "'8'", '"true"', "'~'", '"1e-6"'])
def test_quoted_text_is_a_string(text):
    root, problems = parse(f"a: {text}", "s.yaml")
    assert not problems
    assert plain(root) == {"a": text[1:-1]}


@given(st.binary(max_size=200))
def test_any_bytes_are_a_tree_or_problems(data):
    try:
        text = decode(data, "s.yaml")
    except Unreadable as error:
        assert error.problems
        return
    root, problems = parse(text, "s.yaml")
    assert root is not None or problems


YAML_PIECES = st.sampled_from(
    ["a", "b", "moe", ": ", ":\n", "\n", "  ", "    ", "- ", "? ", "[", "]", "{", "}", ", ", "#",
     " # ", "&x ", "*x", "!t ", "!!int ", "'", '"', "\\", "\\x", "\\U", "\\ud800", "|\n", ">-\n",
     "---\n", "...\n", "%YAML 1.2\n", "%TAG ! x\n", "<<", "1e5", "0x1", ".inf", "null", "\t", "\r",
     "\ufeff", "\x00", "\u2028", "é", "😀", "@", "`", "%", "9" * 50, "extends"]
)  # fmt: skip


@given(st.lists(YAML_PIECES, max_size=30).map("".join))
def test_any_text_is_refused_with_a_problem_at_a_place_in_it(text):
    with pytest.raises(SpecError) as caught:
        load_spec_text(text, "s.yaml")
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for problem in caught.value.problems:
        position = problem.position
        assert position.file == "s.yaml"
        assert 1 <= position.line <= len(lines)
        assert 1 <= position.column <= len(lines[position.line - 1]) + 2
        assert problem.render().isprintable() or "\n" in problem.render()
    caught.value.render().encode("utf-8")


@given(st.text(max_size=60))
def test_any_unicode_is_refused_with_one_printable_message_per_problem(text):
    with pytest.raises(SpecError) as caught:
        load_spec_text(text, "s.yaml")
    for line in caught.value.render().split("\n"):
        assert line.isprintable()


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.integers(-(10**38), 10**38) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | KEYS
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_dumped_tree_reads_back_as_itself(tree):
    root, problems = parse(dump_yaml(tree), "s.yaml")
    assert not problems
    assert _typed(plain(root)) == _typed(tree)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_other_yaml_readers_see_the_same_tree(tree):
    assert _typed(yaml.safe_load(dump_yaml(tree))) == _typed(tree)


def _typed(value: object) -> object:
    """The value with its types spelt out, since 1 == 1.0 == True; -0.0 counts as 0.0."""
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_typed(item) for item in value]
    return type(value).__name__, value


@pytest.mark.parametrize("value", [math.inf, math.nan, 10**41, "\ud800"], ids=repr)
def test_dump_refuses_what_no_spec_can_hold(value):
    with pytest.raises(ValueError, match="a spec holds"):
        dump_yaml({"a": value})


def test_dump_writes_comments_above_their_keys():
    tree = {"moe": {"n_group": 8, "topk_group": 4}}
    text = dump_yaml(tree, {"moe": "Experts.", "moe.topk_group": "two\nlines"})
    assert text == (
        "# Experts.\nmoe:\n  n_group: 8\n  # two\n  # lines\n  topk_group: 4\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b"\n", b"\r"),
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.rstrip(b"\n"),
        lambda data: b"%YAML 1.2\n---\n" + data + b"...\n",
    ],
    ids=["crlf", "cr", "byte-order-mark", "no-final-newline", "explicit-document"],
)
def test_form_of_the_file_does_not_change_the_spec(change, tmp_path):
    path = tmp_path / FLASH.name
    path.write_bytes(change(FLASH.read_bytes()))
    assert load_spec(path) == load_spec(FLASH)
    assert load_spec(path).resolved_hash == load_spec(FLASH).resolved_hash


def test_positions_count_lines_and_columns_the_same_with_crlf_and_byte_order_mark():
    for text in ("a: 1\nb: @\n", "\ufeffa: 1\r\nb: @\r\n", "a: 1\rb: @"):
        _, problems = parse(text, "s.yaml")
        assert [str(problem.position) for problem in problems] == ["s.yaml:2:4"]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a: 1\n\tb: 2\n", ["s.yaml:2:1"]),
        ("a:\t1\nb: 'x\ty'\n", ["s.yaml:1:3", "s.yaml:2:6"]),
        ("a: 1  # no\ttab\n#\t\nb: don't  #\t'\n", []),
        ("a: 'x #\ty'\n", ["s.yaml:1:8"]),
        ('a: "x\\" #\ty"\n', ["s.yaml:1:10"]),
    ],
)
def test_tabs_are_refused_everywhere_but_in_comments(text, where):
    _, problems = parse(text, "s.yaml")
    assert [str(problem.position) for problem in problems] == where
    assert all("tab" in problem.message for problem in problems)


def _refusal_of(path: Path) -> str:
    start = time.perf_counter()
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert time.perf_counter() - start < 2
    assert caught.value.problems[0].position.line == 1
    return caught.value.problems[0].message


def test_a_file_of_100_mb_is_refused_without_being_read(tmp_path):
    path = tmp_path / "big.yaml"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    tracemalloc.start()
    message = _refusal_of(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message == "too large for a spec"
    assert peak < 10 * 2**20


def test_the_size_limit_is_exact(tmp_path):
    path = tmp_path / "big.yaml"
    path.write_bytes(b"#" * MAX_FILE_BYTES)
    assert _refusal_of(path) == "empty"
    path.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    assert _refusal_of(path) == "too large for a spec"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")
def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path):
    os.mkfifo(tmp_path / "fifo.yaml")
    assert _refusal_of(tmp_path / "fifo.yaml") == "not a regular file, but a FIFO"


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no devices on this system")
def test_a_device_is_refused():
    assert _refusal_of(Path("/dev/zero")) == "not a regular file, but a device"


def test_a_folder_is_refused(tmp_path):
    assert _refusal_of(tmp_path) == "not a regular file, but a folder"


def test_a_missing_file_is_named_with_its_nearest_neighbour(tmp_path):
    (tmp_path / "ling-flash.yaml").write_text("a: 1\n")
    assert _refusal_of(tmp_path / "ling-flsh.yaml") == "no such file"
    with pytest.raises(SpecError, match=r"ling-flash\.yaml is the nearest"):
        load_spec(tmp_path / "ling-flsh.yaml")


@pytest.mark.parametrize("name", ["a\0b.yaml", "x" * 5000, "a/b/c.yaml"])
def test_impossible_paths_are_refused(name, tmp_path):
    with pytest.raises(SpecError):
        load_spec(f"{tmp_path}/{name}")


def test_a_symbolic_link_to_a_spec_is_followed(tmp_path):
    (tmp_path / "link.yaml").symlink_to(FLASH)
    assert load_spec(tmp_path / "link.yaml") == load_spec(FLASH)


PATTERNS = {
    "brackets": "[" * 200_000,
    "quotes": "'" * 200_000,
    "comments": "# x\n" * 60_000,
    "many keys": "".join(f"k{index}: 1\n" for index in range(20_000)),
    "unknown keys": "moe:\n" + "".join(f"  num_experts_{index}: 1\n" for index in range(2_000)),
    "one long key": "a" * 200_000 + ": 1",
    "duplicates": "a: 1\n" * 50_000,
    "escaped quotes and a tab": 'a: "' + '\\"' * 100_000 + "\t",
    "a huge version": "%YAML 1." + "9" * 200_000 + "\n---\na: 1\n",
    "a long plain text": "a: " + "word\n  " * 30_000,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_hostile_text_is_refused_in_bounded_time(name):
    start = time.perf_counter()
    with pytest.raises(SpecError):
        load_spec_text(PATTERNS[name], "s.yaml")
    assert time.perf_counter() - start < 5


def test_a_file_with_too_many_keys_is_not_read_to_its_end():
    _, problems = parse(PATTERNS["many keys"] + "b: @\n", "s.yaml")
    assert [problem.message for problem in problems] == ["too many keys and values for a spec"]
