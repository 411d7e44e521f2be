"""Who holds which slots, verify row and pages of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from lingen.planner.solve import Plan


class PoolsFull(RuntimeError):
    """The pools have no room for what a request asks; nothing was taken."""


@dataclass(slots=True, eq=False)
class Allocation:
    """What one running request holds until it is freed.

    row: its verify row.  slots: the plan's slots per request, its own first.  pages: of its tokens,
    in order; `Allocator.grow` adds to them.
    """

    row: int
    slots: tuple[int, ...]
    pages: list[int]


class Allocator:
    """Hands out slots, rows and pages: none twice, none that the plan does not have.

    Host-side and plain Python; it never touches the pools' tensors. A request that does not fit is
    refused before it holds anything, so before a step can write for it. A model without keys and
    values has no pages to give: tokens lie on page 0, which holds nothing.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.running: set[Allocation] = set()
        self._free_rows = list(reversed(range(plan.max_running_requests)))
        self._free_slots = list(reversed(range(plan.max_state_slots)))
        self._free_pages = list(reversed(range(plan.kv_pages)))

    def admit(self, num_tokens: int) -> Allocation:
        """Let a request of `num_tokens` tokens run. Raises PoolsFull."""
        if not self._free_rows:
            raise PoolsFull(
                f"{len(self.running)} requests run, as many as the plan has: {self.plan.binds} bind"
            )
        pages = self._take_pages(num_tokens, 0)
        slots = tuple(self._free_slots.pop() for _ in range(self.plan.slots_per_request))
        allocation = Allocation(self._free_rows.pop(), slots, pages)
        self.running.add(allocation)
        return allocation

    def grow(self, allocation: Allocation, num_tokens: int) -> None:
        """Give a running request the pages of `num_tokens` tokens in all. Raises PoolsFull."""
        self._check(allocation)
        allocation.pages += self._take_pages(num_tokens, len(allocation.pages))

    def free(self, allocation: Allocation) -> None:
        """Take back all that a request holds; others may get it at once."""
        self._check(allocation)
        self.running.remove(allocation)
        self._free_rows.append(allocation.row)
        self._free_slots += reversed(allocation.slots)
        if self.plan.kv_bytes_per_token:
            self._free_pages += reversed(allocation.pages)

    def _check(self, allocation: Allocation) -> None:
        if allocation not in self.running:
            raise ValueError(f"{allocation} is not running: it was freed, or is of other pools")

    def _take_pages(self, num_tokens: int, num_held: int) -> list[int]:
        count = max(1, -(-num_tokens // self.plan.page_size)) - num_held
        if not self.plan.kv_bytes_per_token:
            return [0] * count
        if count > len(self._free_pages):
            raise PoolsFull(
                f"{num_tokens} tokens need {count} more pages of {self.plan.page_size}:"
                f" {len(self._free_pages)} of {self.plan.kv_pages} are free"
            )
        return [self._free_pages.pop() for _ in range(count)]
