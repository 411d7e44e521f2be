"""Which template line and which reads stand behind a line, construct by construct."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lingen.emit.render import render
from lingen.emit.templates import RenderError, TemplateSet
from lingen.targets import OutputFile, Target
from traced import IR, Attention, lines, without_attention


def test_literal_text_names_its_line_and_no_key():
    assert lines("x = 1\n\ny = 2\n") == ["x = 1 | m:1 |", "y = 2 | m:3 |"]


def test_a_printed_value_brings_its_keys():
    assert lines(
        "x = 1\nSIZE = {{ ir.hidden_size }}\nEPS = {{ ir.eps | py }}  # {{ ir.name }}\n"
    ) == [
        "x = 1 | m:1 |",
        "SIZE = 64 | m:2 | hidden_size",
        "EPS = 1e-06  # tiny | m:3 | eps",
    ]


def test_a_value_of_a_part_depends_on_the_part_too_and_itself_comes_first():
    assert lines("LORA = {{ ir.attention.lora | py }}\n") == ["LORA = None | m:1 | lora heads"]


def test_a_condition_counts_for_every_line_of_its_block_and_for_no_other():
    text = """\
{% if ir.attention.has_lora %}
a = 1
{% else %}
b = 1
B = {{ ir.hidden_size }}
{% endif %}
c = 1
"""
    assert lines(text) == [
        "b = 1 | m:4 | lora heads",
        "B = 64 | m:5 | hidden_size lora heads",
        "c = 1 | m:7 |",
    ]
    lora = replace(IR(), attention=Attention(lora=3))
    assert lines(text, lora) == ["a = 1 | m:2 | lora heads", "c = 1 | m:7 |"]


def test_a_branch_depends_on_all_conditions_before_it():
    text = """\
{% if ir.attention %}
a = 1
{% elif ir.hidden_size %}
b = 1
{% else %}
c = 1
{% endif %}
"""
    assert lines(text) == ["a = 1 | m:2 | heads"]
    assert lines(text, without_attention()) == ["b = 1 | m:4 | heads hidden_size"]
    empty = replace(without_attention(), hidden_size=0)
    assert lines(text, empty) == ["c = 1 | m:6 | heads hidden_size"]


def test_a_condition_that_fails_leaves_no_keys_behind():
    assert lines("{% if ir.eps %}{% endif %}\nx = {{ ir.name | py }}\n") == ['x = "tiny" | m:2 |']
    empty = "{% for f in ir.facts if ir.eps == 1 %}\nx = 1\n{% endfor %}\nx = {{ ir.name | py }}\n"
    assert lines(empty) == ['x = "tiny" | m:4 |']


def test_nested_blocks_name_the_inner_one_first():
    text = "{% if ir.eps %}\n{% if ir.hidden_size %}\nx = 1\n{% endif %}\n{% endif %}\n"
    assert lines(text) == ["x = 1 | m:3 | hidden_size eps"]


def test_an_inline_condition_that_prints_nothing_counts_for_its_line():
    text = 'x = f(1{{ ", 2" if ir.attention.has_lora }})\n{{ "# no" if ir.eps == 0 }}y = 1\nz = 1\n'
    assert lines(text) == ["x = f(1) | m:1 | lora heads", "y = 1 | m:2 | eps", "z = 1 | m:3 |"]


def test_an_included_template_names_its_own_lines_within_the_conditions_around_it():
    text = 'a = 1\n{% if ir.eps %}\n{% include "part.j2" %}\n{% endif %}\nb = 1\n'
    assert lines(text, part="{#- in: ir -#}\n\nc = 1\nC = {{ ir.hidden_size }}\n") == [
        "a = 1 | m:1 |",
        "c = 1 | part:3 | eps",
        "C = 64 | part:4 | hidden_size eps",
        "b = 1 | m:5 |",
    ]


def test_each_turn_of_a_loop_has_the_keys_of_its_member():
    text = """\
{% for layer in ir.layers %}
{{ layer.name }} = {{ layer.width }}
c = 1
{% endfor %}
d = 1
"""
    assert lines(text) == [
        "a = 1 | m:2 | hidden_size",
        "c = 1 | m:3 |",
        "b = 2 | m:2 | heads lora",
        "c = 1 | m:3 | lora",
        "d = 1 | m:5 |",
    ]


def test_members_that_a_property_picks_keep_their_names():
    text = "{% for layer in ir.wide_layers %}\n{{ layer.name }} = {{ layer.width }}\n{% endfor %}\n"
    assert lines(text) == ["b = 2 | m:2 | heads lora"]


def test_looking_ahead_in_a_loop_does_not_mix_members_up():
    text = """\
{% for layer in ir.layers %}
{{ layer.name }} = {{ layer.width }}{{ "  # last" if loop.last }}
{% endfor %}
"""
    assert lines(text) == ["a = 1 | m:2 | hidden_size", "b = 2  # last | m:2 | heads lora"]


def test_rows_of_plain_values_are_named_by_their_first():
    text = "{% for name, value in ir.facts %}\n{{ name }} = {{ value }}\n{% endfor %}\n"
    assert lines(text) == ["hidden_size = 64 | m:2 | hidden_size", "heads = 2 | m:2 | heads"]


def test_a_loop_over_plain_values_has_the_keys_of_the_table():
    text = "{% for fact in ir.facts %}\nx = {{ fact | py }}\n{% endfor %}\n"
    assert lines(text)[0] == 'x = ("hidden_size", 64) | m:2 | hidden_size heads'


def test_the_else_of_an_empty_loop_has_the_keys_of_the_table():
    text = "{% for layer in ir.layers %}\nx = 1\n{% else %}\ny = 1\n{% endfor %}\nz = 1\n"
    assert lines(text, replace(IR(), layers=())) == ["y = 1 | m:4 | eps heads", "z = 1 | m:6 |"]


def test_nested_loops_name_the_inner_member_first():
    text = """\
{% for layer in ir.layers %}
{% for name, value in ir.facts %}
{{ layer.name }}_{{ name }} = 1
{% endfor %}
{% endfor %}
"""
    assert lines(text) == [
        "a_hidden_size = 1 | m:3 | hidden_size",
        "a_heads = 1 | m:3 | heads",
        "b_hidden_size = 1 | m:3 | hidden_size lora",
        "b_heads = 1 | m:3 | heads lora",
    ]


def test_a_macro_names_its_own_lines_and_has_the_keys_of_its_arguments():
    text = """\
{% macro pair(size) %}
a = {{ size }}
b = {{ ir.eps | py }}
{% endmacro %}
x = 1
{{ pair(ir.hidden_size) }}
y = 1
"""
    assert lines(text) == [
        "x = 1 | m:5 |",
        "a = 64 | m:2 | hidden_size",
        "b = 1e-06 | m:3 | eps hidden_size",
        "y = 1 | m:7 |",
    ]


def test_an_imported_macro_names_the_template_it_stands_in():
    text = '{% from "macros.j2" import pair %}\n{{ pair(ir.hidden_size) }}\n'
    macros = "{#- macros -#}\n{% macro pair(size) %}\na = {{ size }}\n{% endmacro %}\n"
    assert lines(text, macros=macros) == ["a = 64 | macros:3 | hidden_size"]


def test_captured_and_filtered_text_keeps_its_lines():
    text = """\
{% set body %}
a = 1
{% if ir.eps %}
b = 1
{% endif %}
{% endset %}
def f():
    {{ body | indent }}
{% filter upper %}
c = 1
{% endfilter %}
"""
    assert lines(text) == [
        "def f(): | m:7 |",
        "a = 1 | m:2 |",
        "b = 1 | m:4 | eps",
        "C = 1 | m:10 |",
    ]


def test_captured_text_reaches_a_filter_without_marks():
    text = "{% macro m() %}a{{ ir.hidden_size }}{% endmacro %}\nx = {{ m() | py }}\n"
    assert lines(text) == ['x = "a64" | m:2 |']


def test_what_set_reads_counts_for_the_rest_of_its_block():
    text = "a = 1\n{% if ir.eps %}\n{% set n = ir.hidden_size %}\nb = {{ n }}\n{% endif %}\nc = 1\n"
    assert lines(text) == ["a = 1 | m:1 |", "b = 64 | m:4 | hidden_size eps", "c = 1 | m:6 |"]


def test_what_with_reads_counts_for_its_block():
    text = "{% with n = ir.hidden_size %}\nb = {{ n }}\n{% endwith %}\nc = 1\n"
    assert lines(text) == ["b = 64 | m:2 | hidden_size", "c = 1 | m:4 |"]


@pytest.mark.parametrize(
    "text",
    [
        "x = [1,\n  {%- if ir.eps %} 2,{% endif %}\n  3]\n",
        "x = [1,\n  {%- if ir.eps -%}\n  2,\n  {%- endif %}\n  3]\n",
    ],
)
def test_white_space_control_does_not_shift_lines(text):
    last = text.count("\n")
    assert lines(text + "y = 1\nz = 1\n") == [
        "x = [1, 2, 3] | m:1 | eps",
        f"y = 1 | m:{last + 1} |",
        f"z = 1 | m:{last + 2} |",
    ]


def test_the_condition_of_a_file_counts_for_all_its_lines():
    found = lines("x = 1\nX = {{ ir.hidden_size }}\n", condition=lambda ir: ir.eps > 0)
    assert found == ["x = 1 | m:1 | eps", "X = 64 | m:2 | hidden_size eps"]


def test_a_key_of_another_architecture_is_not_named():
    assert lines("{% for name, value in ir.facts %}\nx = 1\n{% endfor %}\n")[0] == (
        "x = 1 | m:2 | hidden_size"
    )


def test_a_file_that_is_not_python_is_traced_line_by_line():
    assert lines("a\n\n{{ ir.hidden_size }} (\n", path="m.txt") == [
        "a | m:1 |",
        "64 ( | m:3 | hidden_size",
    ]


def test_marks_change_no_text_of_the_shipped_templates(monkeypatch):
    from lingen.emit import templates
    from lingen.emit.selection import shipped_folder
    from lingen.ir import lower
    from lingen.spec import load_spec
    from lingen.targets import TARGETS

    irs = [lower(load_spec(path)) for path in sorted(shipped_folder().glob("*.yaml"))]
    jobs = [
        (ir, file.template) for ir in irs for t in ir.targets for file in TARGETS[t].files_for(ir)
    ]
    marked = [TemplateSet().render(template, ir) for ir, template in jobs]
    monkeypatch.setattr(templates, "instrumented", lambda tree, template: tree)
    monkeypatch.setattr(templates, "_COMPILED", {})
    plain = [TemplateSet().render(template, ir).text for ir, template in jobs]
    assert [made.text for made in marked] == plain
    assert ["".join(piece.text for piece in made.pieces) for made in marked] == plain


def test_a_template_sees_the_values_of_the_ir_itself():
    text = """\
x = {{ (ir.layers | length, ir.layers[1].name, ir.attention is none, ir.eps == 2) | py }}
y = {{ ir.layers | map(attribute="width") | list | py }}
"""
    target = Target("tiny", "", (OutputFile("m.py", "m.j2"),))
    made = render(IR(), target, {"m.j2": text}.__getitem__)["m.py"].decode()
    assert made.split("\n", 1)[1] == 'x = (2, "b", False, False)\ny = [1, 2]\n'


def test_a_part_that_is_printed_is_refused_under_its_own_name():
    with pytest.raises(RenderError) as failure:
        lines("x = 1\n{{ ir.attention }}\n")
    assert str(failure.value) == (
        "templates/m.j2:2: TypeError: Attention(heads=2, lora=None) (Attention) is printed without "
        "a filter; `| py` writes it as source"
    )
