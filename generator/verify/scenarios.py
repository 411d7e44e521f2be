"""Every scenario a case can record, as (check name, computed tensor) in the order of execution."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import torch
from lingen.verify.case import Case
from lingen.verify.session import Session, recording, split_requests
from torch import Tensor, nn

Computed = Iterator[tuple[str, Tensor]]
"""Names of recorded tensors, with `@…` for a rerun, and what the model made of them."""


class Scenarios:
    """Runs one case on one loaded model. Every scenario starts from empty caches."""

    def __init__(self, case: Case, package: ModuleType, model: nn.Module) -> None:
        self.case = case
        self.package = package
        self.model = model
        self.rows = case.golden["main.input_ids"].tolist()
        self.length = len(self.rows[0])

    def all(self) -> Computed:
        """Everything but the other decay convention, which needs another package."""
        yield from self.main_and_decode()
        if self.case.has("mtp"):
            yield from self.mtp()
        for length in self.case.other_lengths:
            yield from self.other_length(length)
        if self.case.has("padded"):
            yield from self.padded()
        for split in self.case.chunk_splits:
            yield from self.chunked(split, "@chunks" + "+".join(map(str, split)))
        yield from self.chunked((1,) * self.length, "@stepwise")
        yield from self.reused()
        yield from self.padded_rows()
        yield from self.ragged(list(range(len(self.rows))), "@ragged")
        yield from self.ragged(list(reversed(range(len(self.rows)))), "@reversed")

    def alt_decay(self) -> Computed:
        """The prefill once more; the model's package was built with the other convention."""
        session = self._session()
        hidden = session.run(dict(enumerate(self.rows)))
        yield "alt_decay.logits", self._logits(session, hidden)
        yield from self._states(session, "alt_decay", "")

    def main_and_decode(self) -> Computed:
        tokens = self.case.golden["decode.tokens"].tolist() if self.case.has("decode") else []
        session = self._session(extra=len(tokens[0]) if tokens else 0)
        prompts = dict(enumerate(self.rows))
        with recording(self.model) as seen:
            hidden = session.run(prompts)
        logits = self._logits(session, hidden)
        yield from self._recorded(seen, "main", prompts, self._states(session, "main", ""))
        yield "main.logits", logits
        if tokens:
            yield from self._decode(session, tokens, logits[:, -1])

    def _decode(self, session: Session, tokens: list[list[int]], last_logits: Tensor) -> Computed:
        chosen, logits = [last_logits.argmax(-1)], []
        for column in range(len(tokens[0])):
            hidden = session.run({r: [row[column]] for r, row in enumerate(tokens)})
            logits.append(self._logits(session, hidden)[:, 0])
            chosen.append(logits[-1].argmax(-1))
        yield "decode.logits", torch.stack(logits, dim=1)
        yield from self._states(session, "decode", "")
        yield "decode.tokens", torch.stack(chosen[:-1], dim=1)

    def mtp(self) -> Computed:
        """The MTP layer over the prefill, with the recorded next tokens; then as in drafting."""
        session = self._session()
        prompts = dict(enumerate(self.rows))
        step = session.prepare(prompts)
        hidden = self.model(step, session.backend)

        def draft(next_ids: Tensor) -> Tensor:
            flat = next_ids.flatten().long().to(session.device)
            return self.model.draft(flat, hidden, step, session.backend)

        with recording(self.model) as seen:
            drafted = draft(self.case.golden["mtp.next_ids"])
        mtp_layer = f"layer.{len(self.model.layers)}."
        own = {name: tensor for name, tensor in seen.items() if name.startswith(mtp_layer)}
        yield from self._recorded(own, "mtp", prompts, iter(()))
        yield "mtp.logits", self._logits(session, split_requests(drafted, prompts))
        drafted = draft(self.case.golden["mtp.draft_next_ids"])
        last = torch.stack([part[-1] for part in split_requests(drafted, prompts).values()])
        yield "mtp.draft_logits", session.logits(last)

    def other_length(self, length: int) -> Computed:
        scenario = f"len{length}"
        row = self.case.golden[f"{scenario}.input_ids"][0].tolist()
        session = Session(self.package, self.model, 1, length)
        hidden = session.run({0: row})[0]
        want = self.case.golden[f"{scenario}.logits"]
        yield f"{scenario}.logits", session.logits(hidden[-want.shape[1] :]).unsqueeze(0)
        yield from self._states(session, scenario, "", requests=[0])

    def padded(self) -> Computed:
        """The rows without their padding, as one ragged batch; padded places are not compared."""
        mask = self.case.golden["padded.attention_mask"].bool()
        ids = self.case.golden["padded.input_ids"]
        prompts = {r: ids[r][mask[r]].tolist() for r in range(len(ids))}
        session = self._session()
        hidden = session.run(prompts)
        logits = self.case.golden["padded.logits"].clone()
        for request, part in hidden.items():
            logits[request][mask[request]] = session.logits(part)
        yield "padded.logits", logits

    def chunked(self, split: tuple[int, ...], suffix: str) -> Computed:
        """Prefill in chunks of the given sizes, all requests together."""
        session = self._session()
        starts = [sum(split[:i]) for i in range(len(split))]
        parts = [
            session.run({r: row[at : at + size] for r, row in enumerate(self.rows)})
            for at, size in zip(starts, split, strict=True)
        ]
        hidden = {r: torch.cat([part[r] for part in parts]) for r in range(len(self.rows))}
        yield f"main.logits{suffix}", self._logits(session, hidden)
        yield from self._states(session, "main", suffix)

    def reused(self) -> Computed:
        """The prefill once more in slots and pages that hold the end of the one before."""
        session = self._session()
        session.run(dict(enumerate(self.rows)))
        session.restart()
        hidden = session.run(dict(enumerate(self.rows)))
        yield "main.logits@reused", self._logits(session, hidden)
        yield from self._states(session, "main", "@reused")

    def padded_rows(self) -> Computed:
        """The last token as a decode batch with padded rows before, between and behind."""
        session = self._session()
        first = session.run({r: row[:-1] for r, row in enumerate(self.rows)})
        last = session.decode_padded({r: row[-1] for r, row in enumerate(self.rows)})
        hidden = {r: torch.cat([first[r], last[r]]) for r in first}
        yield "main.logits@padded-rows", self._logits(session, hidden)
        yield from self._states(session, "main", "@padded-rows")

    def ragged(self, order: list[int], suffix: str) -> Computed:
        """Requests of different lengths in one batch, in the given order; then the short ones
        catch up, in a batch where those that are done have no tokens.
        """
        session = self._session()
        cut = [max(1, self.length - r * (self.length // len(self.rows))) for r in order]
        first = session.run({r: self.rows[r][:n] for r, n in zip(order, cut, strict=True)})
        rest = session.run({r: self.rows[r][n:] for r, n in zip(order, cut, strict=True)})
        hidden = {r: torch.cat([first[r], rest[r]]) for r in range(len(self.rows))}
        yield f"main.logits{suffix}", self._logits(session, hidden)
        yield from self._states(session, "main", suffix)

    def _session(self, extra: int = 0) -> Session:
        return Session(self.package, self.model, len(self.rows), self.length + extra)

    def _logits(self, session: Session, hidden: dict[int, Tensor]) -> Tensor:
        return torch.stack([session.logits(hidden[r]) for r in sorted(hidden)])

    def _states(
        self, session: Session, scenario: str, suffix: str, requests: list[int] | None = None
    ) -> Computed:
        if not hasattr(session.pools, "state"):
            return
        requests = list(range(len(self.rows))) if requests is None else requests
        for layer, state in session.states(requests).items():
            if f"{scenario}.layer.{layer}.state" in self.case.golden:
                yield f"{scenario}.layer.{layer}.state{suffix}", state

    def _recorded(
        self,
        seen: dict[str, Tensor],
        scenario: str,
        prompts: dict[int, list[int]],
        states: Computed,
    ) -> Computed:
        """What hooks saw, in the order of the layers, batch dimension restored."""
        by_name = dict(states)
        for name, flat in seen.items():
            parts = list(split_requests(flat, prompts).values())
            batch = torch.stack(parts[:1] if name.endswith(".attn_out") else parts)
            by_name[f"{scenario}.{name}"] = batch
        for name in sorted(by_name, key=_execution_order):
            yield name, by_name[name]


_PARTS: dict[str, int] = {
    part: place
    for place, part in enumerate(
        ("attn_out", "state", "router_logits", "router_indices", "router_weights", "out")
    )
}


def _execution_order(name: str) -> tuple[int, int]:
    """Place of a recorded tensor in the forward pass: embedding, layer by layer, final norm."""
    parts = name.split(".")
    if parts[1] != "layer":
        return (-1, 0) if parts[1] == "embed" else (1 << 30, 0)
    return (int(parts[2]), _PARTS[parts[3]])
