"""Pools of any size that no plan made, for tests of one backend."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor


def plain_pools(
    state: Tensor | None = None,
    kv: Tensor | None = None,
    verify: Tensor | None = None,
    verify_states: str = "replay",
) -> SimpleNamespace:
    """Pools over these tensors, shaped as in the package; what is not given is hardly there.

    state: [layers, num_slots + 1, H, K, V].  kv: [layers, num_pages + 1, PAGE_SIZE, …].
    verify: [layers, num_rows + 1, D, …]; None: no drafts.
    """
    state = torch.empty(1, 65, 1, 1, 1) if state is None else state
    kv = torch.empty(1, 2, 16, 4) if kv is None else kv
    verify = state.new_empty(state.shape[0], 0, 0, *state.shape[2:]) if verify is None else verify
    plan = SimpleNamespace(draft_tokens=verify.shape[2], verify_states=verify_states)
    return SimpleNamespace(state=state, kv=kv, verify=verify, plan=plan, num_pages=kv.shape[1] - 1)
