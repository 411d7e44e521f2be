"""What `lingen plan` was asked: options read, checked against the model, and planned.

Every refusal names the option.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from lingen.errors import LingenError
from lingen.ir.types import ModelIR
from lingen.planner import DoesNotFit, Geometry, Options, Plan, plan_cache
from lingen.planner.compat import ENGINES, Compat, compat_plan
from lingen.planner.options import EXTRA_BUFFERS, VERIFY_STATES
from lingen.sizing.card import GPU_MIB, MIB, WEIGHT_FORMATS, weight_bytes
from lingen.sizing.geometry import geometry_of, why_not_pp, why_not_tp

MAX_DRAFT_TOKENS = 32
# Bytes and counts beyond this are typing errors, and no engine could hold them.
LARGEST = 2**63 - 1
_DECIMAL = re.compile(r"([0-9]{1,12}(\.[0-9]{0,12})?|\.[0-9]{1,12})([eE][+-]?[0-9]{1,2})?")
_DECIMAL_LIMIT = 10**12
_TOO_LONG = re.compile(r"0*[1-9][0-9]{12,}(\.[0-9]*)?")
_SOURCES = "one of --cache-gib X, --cache-bytes N and --device NAME"


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as typed; None where one was not given. Defaults are the spec's."""

    cache_gib: str | None = None
    cache_bytes: int | None = None
    device: str | None = None
    weights: str | None = None
    mem_fraction: str | None = None
    context_len: int | None = None
    tp: int = 1
    dp: int = 1
    pp: int = 1
    max_running_requests: int | None = None
    max_state_slots: int | None = None
    draft_tokens: int | None = None
    verify_states: str | None = None
    ratio: str | None = None
    page_size: int | None = None
    prefix_cache: bool | None = None
    extra_buffer: str | None = None
    compat: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU, and the heaviest rank's weights on it."""

    name: str
    gpu_bytes: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Request:
    """A question for the planner, and what the answer is shown beside."""

    name: str
    geometry: Geometry
    options: Options
    card: Card | None
    context_len: int | None
    compat: tuple[str, ...]
    can_draft: bool

    def plan(self) -> Plan:
        """Raises `DoesNotFit`; what it says would work are values that the options take."""
        try:
            return plan_cache(self.geometry, self.options)
        except DoesNotFit as refusal:
            for knob, value in list(refusal.would_work.items()):
                if isinstance(value, int) and value > LARGEST:
                    del refusal.would_work[knob]
            raise

    def compat_plans(self) -> dict[str, Compat]:
        return {name: compat_plan(self.geometry, self.options, name) for name in self.compat}


def refuse(option: str, value: object, wrong: str, expected: str) -> LingenError:
    return LingenError(f"{option} {value}: {wrong}\n  expected  {expected}")


def read_request(ir: ModelIR, asked: Asked) -> Request:
    """Check every option and resolve those not given. Raises LingenError."""
    _check_counts(asked)
    for option, value, why_not in (("--tp", asked.tp, why_not_tp), ("--pp", asked.pp, why_not_pp)):
        expected = why_not(ir, value)
        if expected:
            raise refuse(option, value, f"{ir.name} cannot be split so", expected)
    for option, value, key, declared in (
        ("--tp", asked.tp, "parallel.tp", ir.parallel.tp),
        ("--pp", asked.pp, "parallel.pp", ir.parallel.pp),
    ):
        if value not in declared:
            sizes = ", ".join(map(str, declared))
            raise refuse(option, value, f"{ir.name} does not declare it in {key}", sizes)
    cache = ir.cache
    drafts = cache.num_draft_tokens if asked.draft_tokens is None else asked.draft_tokens
    if drafts and ir.mtp is None:
        raise refuse("--draft-tokens", drafts, f"{ir.name} has no MTP layer to draft with", "0")
    for engine in asked.compat:
        _choice("--compat", engine, tuple(ENGINES))
    ratio = asked.ratio
    if ratio is None:
        ratio = str(cache.mamba_full_memory_ratio)
    elif not _positive(ratio):
        raise refuse("--ratio", ratio, "not a positive decimal", "state bytes to KV bytes, as 0.9")
    card = _card(ir, asked, drafts > 0)
    options = Options(
        budget_bytes=_budget(asked, card),
        page_size=cache.page_size if asked.page_size is None else asked.page_size,
        ratio=ratio,
        prefix_cache=cache.prefix_cache if asked.prefix_cache is None else asked.prefix_cache,
        extra_buffer=_choice(
            "--extra-buffer", asked.extra_buffer or cache.extra_buffer, tuple(EXTRA_BUFFERS)
        ),
        draft_tokens=drafts,
        verify_states=_choice(
            "--verify-states", asked.verify_states or cache.verify_states, VERIFY_STATES
        ),
        max_running_requests=asked.max_running_requests,
        max_state_slots=asked.max_state_slots,
        dp=asked.dp,
    )
    geometry = geometry_of(ir, asked.tp, asked.pp)
    compat = tuple(dict.fromkeys(asked.compat))
    return Request(ir.name, geometry, options, card, asked.context_len, compat, ir.mtp is not None)


def _check_counts(asked: Asked) -> None:
    counts = {
        "--cache-bytes": asked.cache_bytes,
        "--context-len": asked.context_len,
        "--dp": asked.dp,
        "--max-running-requests": asked.max_running_requests,
        "--max-state-slots": asked.max_state_slots,
        "--page-size": asked.page_size,
    }
    for option, value in counts.items():
        if value is not None and value < 1:
            raise refuse(option, value, "too small", "at least 1")
        if value is not None and value > LARGEST:
            raise refuse(option, value, "too large", f"at most {LARGEST}")
    for option in ("--max-running-requests", "--max-state-slots"):
        count = counts[option]
        if count is not None and count < asked.dp:
            wrong = f"{option} {count} leaves less than one for each replica"
            raise refuse("--dp", asked.dp, wrong, f"at most {count}")
    drafts = asked.draft_tokens
    if drafts is not None and not 0 <= drafts <= MAX_DRAFT_TOKENS:
        raise refuse("--draft-tokens", drafts, "out of range", f"0 to {MAX_DRAFT_TOKENS}")


def _choice(option: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        lower = value.lower()
        wrong = f"unknown; {lower} is in lower case" if lower in choices else "unknown"
        raise refuse(option, value, wrong, ", ".join(choices))
    return value


def _positive(text: str) -> bool:
    """Whether it is a decimal above 0 as people write it; at most 12 digits on each side."""
    if not _DECIMAL.fullmatch(text):
        return False
    value = Fraction(text)
    return 0 < value < _DECIMAL_LIMIT and (value * _DECIMAL_LIMIT).denominator == 1


def _card(ir: ModelIR, asked: Asked, drafts: bool) -> Card | None:
    needs = {"--weights": asked.weights, "--mem-fraction": asked.mem_fraction}
    if asked.device is None:
        for option, value in needs.items():
            if value is not None:
                raise LingenError(f"{option} {value}: belongs to --device, which is not given")
        return None
    name = _choice("--device", asked.device, tuple(GPU_MIB))
    missing = " and ".join(option for option, value in needs.items() if value is None)
    if missing:
        verb = "are" if " and " in missing else "is"
        raise LingenError(
            f"--device {name}: {missing} {verb} missing\n  expected  {missing} beside it"
        )
    weight_format = _choice("--weights", asked.weights or "", WEIGHT_FORMATS)
    if weight_format == "fp8" and not ir.weights.has_fp8:
        raise refuse("--weights", "fp8", f"{ir.name} has no fp8 checkpoint", "bf16")
    fraction = asked.mem_fraction or ""
    if not _positive(fraction) or Fraction(fraction) > 1:
        raise refuse("--mem-fraction", fraction, "not a part of the card", "above 0, at most 1")
    taken = weight_bytes(ir, asked.tp, asked.pp, weight_format, drafts)
    return Card(name, GPU_MIB[name] * MIB, taken)


def _budget(asked: Asked, card: Card | None) -> int:
    given = [
        option
        for option, value in (
            ("--cache-gib", asked.cache_gib),
            ("--cache-bytes", asked.cache_bytes),
            ("--device", asked.device),
        )
        if value is not None
    ]
    if len(given) != 1:
        found = " and ".join(given) if given else "no memory given"
        raise LingenError(f"{found}: a plan has one budget\n  expected  {_SOURCES}")
    if card is not None:
        return card.gpu_bytes * Fraction(asked.mem_fraction or "1") // 1 - card.weight_bytes
    if asked.cache_bytes is not None:
        return asked.cache_bytes
    text = asked.cache_gib or ""
    if _TOO_LONG.fullmatch(text):
        raise refuse("--cache-gib", text, "too large", f"at most {LARGEST} bytes")
    if not _positive(text):
        raise refuse("--cache-gib", text, "not a positive decimal", "GiB per GPU, as 8 or 12.5")
    budget = Fraction(text) * (1 << 30) // 1
    if budget > LARGEST:
        raise refuse("--cache-gib", text, "too large", f"at most {LARGEST} bytes")
    return budget
