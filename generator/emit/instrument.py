"""Puts marks into a parsed template, so that its output says which line each text comes from.

Marks stand between the texts that the template prints, so they survive includes, loops, macros and
captured texts. Knows nothing of what is rendered; `recording.py` gives marks their contents and
reads them.

    = LINE TEMPLATE   the text before it is literal and starts on that line
    > LINE TEMPLATE   the text before it was printed by an expression on that line
    ? READS           what that expression read; stands between its text and its `>`
    { READS … }       a block and what its head read: a branch, a macro, a whole template
    [ … }             a loop; `^ READS` (its head) and `~ READS` (the member) begin each turn
    + READS           what a `{% set %}` read: it counts for the rest of the block
    - READS           what no text depends on

Without letters: a filter such as `upper` leaves marks in captured text as they are.
"""

from __future__ import annotations

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

MARK_START, MARK_END = "\ufdd0", "\ufdd1"
"""Noncharacters of Unicode: no spec and no template holds them."""

BEGIN, ADDED, DROPPED, PRINTED = ("mark_begin", "mark_added", "mark_dropped", "mark_printed")
"""Attributes of the environment which are marks, new ones at each access: what was read since the
last one goes into it."""
TURN = "mark_turn"
"""The method of the environment which gives the marks of a loop's turn; it takes the targets."""


def instrumented(tree: nodes.Template, template: int) -> nodes.Template:
    """`tree` changed in place: it prints the same texts in the same order, with marks between.

    `template` stands for it in the marks. A captured text (a macro's, or that of
    `{% set %}…{% endset %}`) holds marks: a template may print and filter it, not compare or
    measure it.
    """
    tree = _Instrumenter(template).visit(tree)
    tree.body = _block(tree.body)
    return tree


class _Instrumenter(NodeTransformer):
    def __init__(self, template: int) -> None:
        self._template = template

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        parts: list[nodes.Expr] = []
        for part in node.nodes:
            is_literal = isinstance(part, nodes.TemplateData)
            mark = _mark(f"{'=' if is_literal else '>'}{part.lineno} {self._template}")
            parts += [part, mark] if is_literal else [part, _reading(PRINTED, part.lineno), mark]
        node.nodes = parts
        return node

    def visit_If(self, node: nodes.If) -> nodes.If:
        for branch in (node, *node.elif_):
            branch.body = _block(self._statements(branch.body))
        # Without an else, its head has been read all the same.
        node.else_ = _block(self._statements(node.else_))
        return node

    def visit_For(self, node: nodes.For) -> list[nodes.Node]:
        stored = [node.target, *node.target.find_all(nodes.Name)]
        targets = [nodes.Name(n.name, "load") for n in stored if isinstance(n, nodes.Name)]
        turn = nodes.Call(nodes.EnvironmentAttribute(TURN), targets, [], None, None)
        turn.set_lineno(node.lineno, override=True)
        node.body = [_output(turn), *self._statements(node.body)]
        node.else_ = _block(self._statements(node.else_)) if node.else_ else []
        end = _output(_mark("}"), _reading(DROPPED, node.lineno))
        return [_output(_mark("[")), node, end]

    def _block(self, node: nodes.Node) -> nodes.Node:
        node = self.generic_visit(node)
        node.body = _block(node.body)
        return node

    visit_With = visit_Macro = visit_CallBlock = visit_FilterBlock = visit_Block = _block

    def visit_Assign(self, node: nodes.Assign) -> list[nodes.Node]:
        return [node, _output(_reading(ADDED, node.lineno))]

    def _statements(self, body: list[nodes.Node]) -> list[nodes.Node]:
        return [new for node in body for new in self.visit_list(node)]


def _block(body: list[nodes.Node]) -> list[nodes.Node]:
    lineno = body[0].lineno if body else 1
    return [_output(_reading(BEGIN, lineno)), *body, _output(_mark("}"))]


def _output(*parts: nodes.Expr) -> nodes.Output:
    return nodes.Output(list(parts), lineno=parts[0].lineno)


def _mark(content: str) -> nodes.TemplateData:
    return nodes.TemplateData(f"{MARK_START}{content}{MARK_END}", lineno=1)


def _reading(attribute: str, lineno: int) -> nodes.EnvironmentAttribute:
    return nodes.EnvironmentAttribute(attribute, lineno=lineno)
