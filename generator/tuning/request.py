"""What `lingen tune` was asked: options read and checked against the model. Knows no card."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lingen.errors import LingenError
from lingen.ir.types import ModelIR
from lingen.tuned.lookup import TableKey
from lingen.tuning import FORMS
from lingen.tuning.rows import TOKEN_COUNTS, Shape

_COUNTS = re.compile(r"[1-9][0-9]{0,5}(,[1-9][0-9]{0,5})*")
_LARGEST_WIDTH = "moe.moe_intermediate_size"


@dataclass(frozen=True, slots=True)
class Request:
    """token_counts: ascending.  dtype: as a spec's entry of a table says it."""

    shape: Shape
    token_counts: tuple[int, ...]
    dtype: str

    def table_key(self, device: str) -> TableKey:
        is_fp8 = self.shape.form != "bf16"
        return TableKey(
            num_experts=self.shape.num_experts,
            width=self.shape.width,
            device=device,
            dtype="fp8_w8a8" if is_fp8 else None,
            block_shape=self.shape.scale_block,
            per_channel_quant=self.shape.form == "fp8_channel",
        )


def read_request(ir: ModelIR, tp: int, form: str, token_counts: str | None) -> Request:
    """Raises LingenError, which names the option and the key of the spec that it goes against."""
    if ir.moe is None:
        raise _refuse("tune", ir.name, "has no experts", "a spec with moe.num_experts")
    if form not in FORMS:
        raise _refuse("--dtype", form, "unknown", ", ".join(FORMS))
    formats = ir.spec.quantization.checkpoint_formats
    if form != "bf16" and form not in formats:
        expected = f"quantization.checkpoint_formats with {form}, not {', '.join(formats)}"
        raise _refuse("--dtype", form, f"{ir.name} does not load such weights", expected)
    _refuse_split(ir, tp)
    num_experts, width = ir.moe_shape(tp)
    block = tuple(ir.spec.quantization.weight_block_size) if form == "fp8_block" else None
    if block is not None and width % block[0]:
        wrong = f"{_LARGEST_WIDTH} of a rank is {width}, no multiple of the weights' blocks"
        expected = f"a multiple of quantization.weight_block_size, {list(block)}"
        raise _refuse("--tp", tp, wrong, expected)
    shape = Shape(num_experts, width, ir.model.hidden_size, ir.moe.num_experts_per_tok, form, block)
    dtype = "bfloat16" if form == "bf16" else "fp8_w8a8"
    return Request(shape, _counts(token_counts), dtype)


def _refuse_split(ir: ModelIR, tp: int) -> None:
    """Sizes that no rank of this model has."""
    width = ir.moe.moe_intermediate_size
    if tp < 1:
        raise _refuse("--tp", tp, "too small", "at least 1")
    if ir.parallel.ep != 1:
        wrong = f"parallel.ep of {ir.name} is {ir.parallel.ep}, which spreads experts over ranks"
        raise _refuse("--tp", tp, wrong, "parallel.ep 1, as the torch package splits each expert")
    if width % tp:
        wrong = f"moe.moe_intermediate_size {width} is not a multiple of it"
        raise _refuse("--tp", tp, wrong, f"a divisor of {width} that parallel.tp declares")
    if tp not in ir.parallel.tp:
        sizes = ", ".join(map(str, ir.parallel.tp))
        raise _refuse("--tp", tp, f"{ir.name} does not declare it in parallel.tp", sizes)


def _counts(text: str | None) -> tuple[int, ...]:
    if text is None:
        return TOKEN_COUNTS
    if not _COUNTS.fullmatch(text):
        raise _refuse("--token-counts", text, "not a list of counts", "as 1,8,64")
    return tuple(sorted(set(map(int, text.split(",")))))


def _refuse(option: str, value: object, wrong: str, expected: str) -> LingenError:
    return LingenError(f"{option} {value}: {wrong}\n  expected  {expected}\nNothing was written.")
