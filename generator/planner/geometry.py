"""What a model's caches take per slot, draft and token, on each pipeline stage."""

from __future__ import annotations

from dataclasses import dataclass


def pipeline_stages(num_layers: int, pp: int) -> tuple[range, ...]:
    """Layers of each stage: split evenly, the last `num_layers mod pp` stages take one more.

    Raises ValueError where a stage would have none.
    """
    if not 1 <= pp <= num_layers:
        raise ValueError(f"pp is {pp}: {num_layers} layers make 1 to {num_layers} stages")
    size, larger = divmod(num_layers, pp)
    stages, first = [], 0
    for index in range(pp):
        last = first + size + (1 if index >= pp - larger else 0)
        stages.append(range(first, last))
        first = last
    return tuple(stages)


@dataclass(frozen=True, slots=True)
class Stage:
    """Bytes of one pipeline stage on one GPU, heads divided by tp.

    state_bytes: recurrent state of a slot.  replay_bytes: keys and values of one draft token in
    the stage's lightning layers.  kv_bytes: of a token, without the MTP layer's `draft_kv_bytes`.
    """

    state_bytes: int
    replay_bytes: int
    kv_bytes: int
    draft_kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Geometry:
    """The pipeline stages of one model, first to last, on one of `tp` tensor-parallel ranks."""

    stages: tuple[Stage, ...]
    tp: int = 1

    @property
    def has_state(self) -> bool:
        return any(stage.state_bytes for stage in self.stages)
