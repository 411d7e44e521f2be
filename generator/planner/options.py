"""What a plan is asked for, and what follows from the options alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from lingen.planner.geometry import Stage

EXTRA_BUFFERS = {"none": 0, "no-overlap": 1, "overlap": 2}
VERIFY_STATES = ("replay", "snapshot")


def slots_per_request(has_state: bool, prefix_cache: bool, extra_buffer: str) -> int:
    """State slots that a running request holds at worst.

    One without a prefix cache. With it three (the request's own and two that the cache keeps), one
    more for an extra buffer, two more where that buffer is used with overlapped scheduling.
    """
    if not has_state or not prefix_cache:
        return 1
    return 3 + EXTRA_BUFFERS[extra_buffer]


def _is_positive(text: str) -> bool:
    try:
        return Fraction(text) > 0
    except (ValueError, ZeroDivisionError):
        return False


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for. Counts are those of the whole deployment: dp divides them.

    budget_bytes: of one GPU, after weights.  ratio: state bytes to KV bytes, a decimal as text.
    max_running_requests, max_state_slots: at least 1, or None.  draft_tokens: 0 turns drafts off.

    Raises ValueError, naming the field, for a value that means nothing.
    """

    budget_bytes: int
    page_size: int
    ratio: str = "0.9"
    prefix_cache: bool = True
    extra_buffer: str = "none"
    draft_tokens: int = 0
    verify_states: str = "replay"
    max_running_requests: int | None = None
    max_state_slots: int | None = None
    dp: int = 1

    def __post_init__(self) -> None:
        lowest = {"page_size": 1, "dp": 1, "draft_tokens": 0}
        lowest |= {"max_running_requests": 1, "max_state_slots": 1}
        for name, least in lowest.items():
            value = getattr(self, name)
            is_absent = value is None and name.startswith("max_")
            if not is_absent and (type(value) is not int or value < least):
                raise ValueError(f"{name} is {value!r}: a whole number from {least} on is expected")
        if type(self.budget_bytes) is not int:
            raise ValueError(f"budget_bytes is {self.budget_bytes!r}: a whole number is expected")
        if not isinstance(self.ratio, str) or not _is_positive(self.ratio):
            raise ValueError(f"ratio is {self.ratio!r}: a decimal above 0, as text, is expected")
        if self.extra_buffer not in EXTRA_BUFFERS:
            raise ValueError(f"extra_buffer is {self.extra_buffer!r}: one of {list(EXTRA_BUFFERS)}")
        if self.verify_states not in VERIFY_STATES:
            raise ValueError(f"verify_states is {self.verify_states!r}: one of {VERIFY_STATES}")

    @property
    def requests(self) -> int | None:
        """Requests of one replica, None: unbounded."""
        if self.max_running_requests is None:
            return None
        return max(1, self.max_running_requests // self.dp)

    @property
    def rule(self) -> str:
        """The option that sizes the state pool."""
        if self.max_state_slots is not None:
            return "max_state_slots"
        if not self.prefix_cache and self.max_running_requests is not None:
            return "max_running_requests"
        return "ratio"

    def share(self, budget_bytes: int) -> int:
        """`floor(budget · r / (1 + r))`: what the ratio gives to states and verify rows."""
        ratio = Fraction(self.ratio)
        return budget_bytes * ratio.numerator // (ratio.numerator + ratio.denominator)

    def verify_bytes(self, stage: Stage) -> int:
        """Verify memory of one request, 0 without drafts."""
        is_snapshot = self.verify_states == "snapshot"
        return self.draft_tokens * (stage.state_bytes if is_snapshot else stage.replay_bytes)

    def kv_bytes(self, stage: Stage) -> int:
        """KV bytes of one token; the MTP layer's count with drafts."""
        return stage.kv_bytes + (stage.draft_kv_bytes if self.draft_tokens else 0)
