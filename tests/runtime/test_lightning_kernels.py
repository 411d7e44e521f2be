"""Each lightning kernel against its reference: on a GPU, and in Triton's interpreter on a CPU.

Reference and kernel get the same inputs: views into buffers full of NaN, pools full of NaN but for
the slots that hold a state, and index tensors of any order. Results and whole pools are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate, permutations
from types import ModuleType

import pytest
import torch
from comparison import assert_same_bits, relative_error
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreter import IS_INTERPRETED
from lightning_calls import PAD_SLOT, Inputs
from torch import Tensor

pytestmark = [] if IS_INTERPRETED else pytest.mark.gpu
DEVICE = "cpu" if IS_INTERPRETED else "cuda"
# In the interpreter float16 stands in for bfloat16, whose bits tl.dot multiplies as integers there,
# and to which float32 is cut off instead of rounded.
HALF = torch.float16 if IS_INTERPRETED else torch.bfloat16
# Relative to the root mean square. float32: sums of a few hundred products. Others: inputs are
# exact in both; scores, states in products and outputs are rounded to 8 bits of mantissa.
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}
EXAMPLES = 8 if IS_INTERPRETED else 60


@pytest.fixture(scope="module")
def kernels(tiny: ModuleType) -> ModuleType:
    return tiny.kernels.lightning


@pytest.fixture(autouse=True)
def short_segments(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short requests have several."""
    monkeypatch.setattr(kernels, "MIN_SEGMENT", 32)


@pytest.fixture(autouse=True)
def poisoned_memory() -> Iterator[None]:
    """Memory that nobody wrote holds NaN, also what wrappers allocate."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    assert torch.empty(3).isnan().all() and torch.ones(1).new_empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(False)


def index(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def flags(values: list[bool]) -> Tensor:
    return torch.tensor(values, dtype=torch.bool, device=DEVICE)


def starts_of(lengths: list[int]) -> Tensor:
    return index([0, *accumulate(lengths)])


class Case:
    """Inputs of T tokens on DEVICE, and a pool whose listed slots hold a state."""

    def __init__(
        self,
        num_tokens: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        held: list[int],
        num_slots: int,
        *,
        seed: int = 0,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        inputs = Inputs.random(num_tokens, num_heads, head_dim, seed=seed).to(dtype)
        qkv = torch.stack([inputs.q, inputs.k, inputs.v], dim=1).to(DEVICE)
        buffer = torch.full(
            (num_tokens + 3, 3, num_heads + 1, head_dim + 16),
            torch.nan,
            dtype=dtype,
            device=DEVICE,
        )
        self.qkv = buffer[1 : num_tokens + 1, :, :num_heads, :head_dim].copy_(qkv)
        self.q, self.k, self.v = self.qkv.unbind(1)
        self.log_decay, self.scale = inputs.log_decay.to(DEVICE), inputs.scale
        generator = torch.Generator().manual_seed(seed)
        shape = (num_heads, head_dim, head_dim)
        self.state = torch.full(
            (num_slots + 1, *shape), torch.nan, dtype=state_dtype, device=DEVICE
        )
        for slot in held:
            self.state[slot] = torch.randn(shape, generator=generator)


def assert_pools_agree(got: Tensor, want: Tensor, tolerance: float) -> None:
    """Close where the reference holds numbers, NaN elsewhere; the spare entry may hold anything."""
    got, want = got[:-1].double(), want[:-1].double()
    assert torch.equal(got.isnan(), want.isnan()), "other places are NaN"
    assert_near(got.nan_to_num(), want.nan_to_num(), tolerance)


def assert_near(got: Tensor, want: Tensor, tolerance: float) -> None:
    assert got.shape == want.shape
    if want.any():
        error = relative_error(got, want)
        assert error <= tolerance, f"relative error {error:.3g}, tolerance {tolerance:g}"
    else:
        assert not got.any()


@st.composite
def batches(draw: st.DrawFn, lengths: st.SearchStrategy[int]) -> dict:
    """Requests with slots in any order, some padded, some with a state, some tracked."""
    num_reqs = draw(st.integers(1, 4))
    slots = draw(st.permutations(range(2 * num_reqs + 1)))
    is_padding = [draw(st.integers(0, 4)) == 0 for _ in range(num_reqs)]
    tracked = [not pad and draw(st.booleans()) for pad in is_padding]
    return {
        "lengths": [draw(lengths) for _ in range(num_reqs)],
        "slots": [PAD_SLOT if pad else slots[r] for r, pad in enumerate(is_padding)],
        "has_initial": [not pad and draw(st.booleans()) for pad in is_padding],
        "track_slots": [slots[num_reqs + r] if t else PAD_SLOT for r, t in enumerate(tracked)],
        "track_at": [draw(st.integers(0, 1000)) for _ in range(num_reqs)],
        "has_track": draw(st.booleans()),
        "num_slots": 2 * num_reqs + 1,
    }


def held_slots(batch: dict) -> list[int]:
    pairs = zip(batch["slots"], batch["has_initial"], strict=True)
    return [slot for slot, has_initial in pairs if has_initial]


def tracking(batch: dict) -> tuple[Tensor, Tensor]:
    if not batch["has_track"]:
        return index([]), index([])
    slots, lens = [], []
    for slot, at, length in zip(
        batch["track_slots"], batch["track_at"], batch["lengths"], strict=True
    ):
        slots.append(slot if length else PAD_SLOT)
        lens.append(at % length + 1 if length else 0)
    return index(slots), index(lens)


# Each size is compiled on its own on a GPU: fewer there, but those of published models.
SIZES = {
    "num_heads": st.sampled_from([1, 3, 6] if IS_INTERPRETED else [3]),
    "head_dim": st.sampled_from([16, 32] if IS_INTERPRETED else [16, 64, 128]),
    "seed": st.integers(0, 100),
}


def run_both(
    call: Callable[[Case], Tensor | None], reference: Callable[[Case], Tensor | None], case: Case
) -> tuple[Tensor | None, Tensor | None, Tensor, Tensor]:
    """Outputs and pools of both, each on its own copy of the pool."""
    before = case.state
    case.state = before.clone()
    want = reference(case)
    want_state, case.state = case.state, before.clone()
    got = call(case)
    return got, want, case.state, want_state


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("state_dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(batch=batches(st.just(1)), **SIZES)
def test_decode(
    kernels: ModuleType,
    batch: dict,
    dtype: torch.dtype,
    state_dtype: torch.dtype,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    num_reqs = len(batch["lengths"])
    sizes = (num_reqs, num_heads, head_dim, dtype, held_slots(batch), batch["num_slots"])
    case = Case(*sizes, seed=seed, state_dtype=state_dtype)
    rows = (index(batch["slots"]), flags(batch["has_initial"]), tracking(batch)[0])

    def run(name: str) -> Callable[[Case], Tensor]:
        return lambda c: getattr(kernels, name)(c.q, c.k, c.v, c.state, *rows, c.log_decay, c.scale)

    got, want, state, want_state = run_both(
        run("lightning_decode"), run("lightning_decode_ref"), case
    )
    assert_near(got, want, TOLERANCES[dtype])
    assert_pools_agree(state, want_state, TOLERANCES[state_dtype])


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(batch=batches(st.just(1)), group_size=st.sampled_from([1, 2, 3]), **SIZES)
def test_fused_decode(
    kernels: ModuleType,
    batch: dict,
    dtype: torch.dtype,
    group_size: int,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    num_reqs, num_groups = len(batch["lengths"]), num_heads
    num_heads *= group_size
    sizes = (num_reqs, num_heads, head_dim, dtype, held_slots(batch), batch["num_slots"])
    case = Case(*sizes, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    width = num_heads * head_dim

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    angles = random(num_reqs, 1, head_dim // 4).to(DEVICE)
    gate = random(num_reqs, width + 16).to(DEVICE, dtype)[:, :width]
    weights = [random(dim).to(DEVICE, dtype) for dim in (head_dim, head_dim, width)]
    rows = (index(batch["slots"]), flags(batch["has_initial"]), tracking(batch)[0])

    def run(name: str) -> Callable[[Case], Tensor]:
        return lambda c: getattr(kernels, name)(
            *(c.qkv, gate, angles.cos(), angles.sin(), *weights, num_groups, 1e-6),
            *(c.state, *rows, c.log_decay, c.scale),
        )

    got, want, state, want_state = run_both(
        run("lightning_decode_fused"), run("lightning_decode_fused_ref"), case
    )
    assert_near(got, want, TOLERANCES[dtype])
    assert_pools_agree(state, want_state, TOLERANCES[dtype])
    assert not kernels.counters(1, got.device).any(), "counters are not back to zero"


PREFILLS = ["lightning_prefill", "lightning_prefill_blocks"]
BLOCK_EDGES = [0, 0, 1, 2, 15, 31, 32, 33, 63, 64, 65, 127, 129, 200]


def run_prefill(kernels: ModuleType, name: str, batch: dict, chunk_size: int = 64) -> Callable:
    return lambda c: getattr(kernels, name)(
        *(c.q, c.k, c.v, c.state, index(batch["slots"]), flags(batch["has_initial"])),
        *(*tracking(batch), starts_of(batch["lengths"])),
        *(c.log_decay, c.scale, chunk_size, max(batch["lengths"])),
    )


@pytest.mark.parametrize("name", PREFILLS)
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(
    batch=batches(st.sampled_from(BLOCK_EDGES)), chunk_size=st.sampled_from([16, 64, 256]), **SIZES
)
def test_prefill(
    kernels: ModuleType,
    name: str,
    batch: dict,
    dtype: torch.dtype,
    chunk_size: int,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    num_tokens = sum(batch["lengths"])
    sizes = (num_tokens, num_heads, head_dim, dtype, held_slots(batch), batch["num_slots"])
    got, want, state, want_state = run_both(
        run_prefill(kernels, name, batch, chunk_size),
        run_prefill(kernels, "lightning_prefill_ref", batch, chunk_size),
        Case(*sizes, seed=seed),
    )
    assert_near(got, want, TOLERANCES[dtype])
    assert_pools_agree(state, want_state, TOLERANCES[dtype])


@st.composite
def verify_batches(draw: st.DrawFn, num_drafts: int) -> dict:
    """Chains of 0 to D + 1 tokens, each with up to D drafts of the last step pending."""
    batch = draw(batches(st.integers(0, num_drafts + 1)))
    num_reqs = len(batch["lengths"])
    return {
        **batch,
        "rows": draw(st.permutations(range(num_reqs + 1)))[:num_reqs],
        "pending": [
            draw(st.integers(0, num_drafts)) if has_initial else 0
            for has_initial in batch["has_initial"]
        ],
    }


def verify_case(
    batch: dict, num_drafts: int, num_heads: int, head_dim: int, dtype: torch.dtype, seed: int
) -> tuple[Case, Tensor]:
    """The case, and replay rows that hold drafts where some are pending and NaN elsewhere."""
    sizes = (sum(batch["lengths"]), num_heads, head_dim, dtype)
    case = Case(*sizes, held_slots(batch), batch["num_slots"], seed=seed)
    shape = (len(batch["rows"]) + 2, num_drafts, num_heads, 2 * head_dim)
    rows = torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)
    generator = torch.Generator().manual_seed(seed + 1)
    for row, pending in zip(batch["rows"], batch["pending"], strict=True):
        rows[row, :pending] = torch.randn(pending, *shape[2:], generator=generator).to(dtype)
    return case, rows


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(data=st.data(), num_drafts=st.integers(1, 4), **SIZES)
def test_verify(
    kernels: ModuleType,
    data: st.DataObject,
    dtype: torch.dtype,
    num_drafts: int,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    batch = data.draw(verify_batches(num_drafts))
    case, rows = verify_case(batch, num_drafts, num_heads, head_dim, dtype, seed)
    written: list[Tensor] = []

    def run(name: str) -> Callable[[Case], Tensor]:
        def call(c: Case) -> Tensor:
            written.append(rows.clone())
            return getattr(kernels, name)(
                *(c.q, c.k, c.v, c.state, index(batch["slots"]), flags(batch["has_initial"])),
                *(starts_of(batch["lengths"]), written[-1], index(batch["rows"])),
                *(index(batch["pending"]), c.log_decay, c.scale),
            )

        return call

    got, want, state, want_state = run_both(
        run("lightning_verify"), run("lightning_verify_ref"), case
    )
    assert_near(got, want, TOLERANCES[dtype])
    assert_pools_agree(state, want_state, TOLERANCES[torch.float32])
    assert_same_bits(written[1][:-1], written[0][:-1])
    assert not kernels.counters(1, got.device).any(), "counters are not back to zero"


@settings(max_examples=EXAMPLES)
@given(data=st.data(), num_drafts=st.integers(1, 4), **SIZES)
def test_verify_with_snapshots(
    kernels: ModuleType,
    data: st.DataObject,
    num_drafts: int,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    batch = data.draw(verify_batches(num_drafts))
    case, _ = verify_case(batch, num_drafts, num_heads, head_dim, torch.float32, seed)
    shape = (len(batch["rows"]) + 2, num_drafts, *case.state.shape[1:])
    written: list[Tensor] = []

    def run(suffix: str) -> Callable[[Case], Tensor]:
        def call(c: Case) -> Tensor:
            written.append(torch.full(shape, torch.nan, device=DEVICE))
            slots, rows = index(batch["slots"]), index(batch["rows"])
            out = getattr(kernels, "lightning_verify_snapshot" + suffix)(
                *(c.q, c.k, c.v, c.state, slots, flags(batch["has_initial"])),
                *(starts_of(batch["lengths"]), written[-1], rows, c.log_decay, c.scale),
            )
            accepted = [max(length - 1, 0) for length in batch["lengths"]]
            accept = getattr(kernels, "lightning_accept" + suffix)
            accept(c.state[None], slots, written[-1][None], rows, index(accepted))
            return out

        return call

    got, want, state, want_state = run_both(run(""), run("_ref"), case)
    assert_near(got, want, TOLERANCES[torch.float32])
    assert_pools_agree(state, want_state, TOLERANCES[torch.float32])
    assert_pools_agree(written[1], written[0], TOLERANCES[torch.float32])


@pytest.mark.parametrize("state_dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(data=st.data(), num_drafts=st.integers(1, 4), **SIZES)
def test_verify_and_commit_leave_the_bits_of_plain_decoding(
    kernels: ModuleType,
    data: st.DataObject,
    state_dtype: torch.dtype,
    num_drafts: int,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    """Three steps of drafting, any number accepted each time, then the commit."""
    num_reqs = data.draw(st.integers(1, 3))
    slots = index(data.draw(st.permutations(range(num_reqs))))
    rows = index(data.draw(st.permutations(range(num_reqs))))
    is_old = flags([True] * num_reqs)
    shape = (num_reqs + 1, num_drafts, num_heads, 2 * head_dim)
    verify = torch.full(shape, torch.nan, device=DEVICE)
    tokens = (num_drafts + 1) * num_reqs
    sizes = (num_heads, head_dim, torch.float32, list(range(num_reqs)), num_reqs)
    state = Case(tokens, *sizes, seed=seed, state_dtype=state_dtype).state
    plain = state.clone()
    pending = index([0] * num_reqs)
    for step in range(3):
        case = Case(tokens, *sizes, seed=seed + step)
        starts = starts_of([num_drafts + 1] * num_reqs)
        rest = (case.log_decay, case.scale)
        out = kernels.lightning_verify(
            *(case.q, case.k, case.v, state, slots, is_old, starts, verify, rows, pending, *rest)
        )
        pending = index([data.draw(st.integers(0, num_drafts)) for _ in range(num_reqs)])
        for place in range(num_drafts + 1):
            decoded = torch.where(pending >= place, slots, PAD_SLOT)
            q, k, v = (x[place :: num_drafts + 1] for x in (case.q, case.k, case.v))
            one = kernels.lightning_decode(q, k, v, plain, decoded, is_old, index([]), *rest)
            taken = pending >= place
            assert_near(out[place :: num_drafts + 1][taken], one[taken], TOLERANCES[torch.float32])
    kernels.lightning_commit(state[None], slots, verify[None], rows, pending, case.log_decay[None])
    assert_same_bits(state[:-1], plain[:-1])


@pytest.mark.parametrize("is_snapshot", [False, True], ids=["replay", "snapshot"])
@pytest.mark.parametrize("state_dtype", [torch.float32, HALF])
@settings(max_examples=EXAMPLES)
@given(data=st.data(), num_drafts=st.integers(1, 4), **SIZES)
def test_one_launch_commits_all_layers_and_skips_padding(
    kernels: ModuleType,
    data: st.DataObject,
    state_dtype: torch.dtype,
    num_drafts: int,
    is_snapshot: bool,
    num_heads: int,
    head_dim: int,
    seed: int,
) -> None:
    """Three layers with decays of their own; a padded row claims that its drafts are pending."""
    num_reqs = 3
    slots = data.draw(st.permutations(range(num_reqs + 1)))[:num_reqs]
    rows = data.draw(st.permutations(range(num_reqs + 1)))[:num_reqs]
    pending = data.draw(st.permutations([0, 1, num_drafts]))
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    state = random(3, num_reqs + 2, num_heads, head_dim, head_dim, dtype=state_dtype)
    shape = (3, num_reqs + 2, num_drafts, num_heads)
    if is_snapshot:
        verify = random(*shape, head_dim, head_dim, dtype=state_dtype)
    else:
        verify = random(*shape, 2 * head_dim, dtype=HALF)
    for row, count in zip(rows, pending, strict=True):
        verify[:, row, count:] = torch.nan  # drafts that were rejected
    log_decay = -random(3, num_heads).abs()
    padded = (index([*slots, PAD_SLOT]), verify, index([*rows, rows[0]]))
    arguments = (*padded, index([*pending, num_drafts]), *([] if is_snapshot else [log_decay]))
    name = "lightning_accept" if is_snapshot else "lightning_commit"
    want, got = state.clone(), state.clone()
    getattr(kernels, f"{name}_ref")(want, *arguments)
    getattr(kernels, name)(got, *arguments)
    if is_snapshot:
        assert_same_bits(got[:, :-1], want[:, :-1])
    else:
        assert_pools_agree(got.transpose(0, 1), want.transpose(0, 1), TOLERANCES[state_dtype])
    idle = [slot for slot, count in zip(slots, pending, strict=True) if not count]
    idle += [slot for slot in range(num_reqs + 1) if slot not in slots]
    assert_same_bits(got[:, idle], state[:, idle])


@settings(max_examples=EXAMPLES)
@given(batch=batches(st.just(1)), **SIZES)
def test_a_decode_has_the_same_bits_alone_in_a_batch_and_among_prefills(
    kernels: ModuleType, batch: dict, num_heads: int, head_dim: int, seed: int
) -> None:
    num_reqs = len(batch["lengths"])
    batch = {**batch, "has_track": False}
    mixed = {
        **batch,
        "lengths": [1 if request % 2 == 0 else 40 for request in range(num_reqs)],
        "slots": list(range(num_reqs)),
        "has_initial": [True] * num_reqs,
    }
    num_tokens = sum(mixed["lengths"])
    sizes = (num_heads, head_dim, HALF, held_slots(mixed), num_reqs)
    case = Case(num_tokens, *sizes, seed=seed)
    before = case.state.clone()
    for name in PREFILLS:
        case.state = before.clone()
        out = run_prefill(kernels, name, mixed)(case)
        for request, token in enumerate(accumulate([0, *mixed["lengths"][:-1]])):
            if mixed["lengths"][request] == 1:
                alone = before.clone()
                of_one = slice(token, token + 1)
                got = kernels.lightning_decode(
                    *(case.q[of_one], case.k[of_one], case.v[of_one], alone),
                    *(index([request]), flags([True]), index([]), case.log_decay, case.scale),
                )
                assert_same_bits(got, out[of_one])
                assert_same_bits(alone[request], case.state[request])


@pytest.mark.parametrize("name", PREFILLS)
@pytest.mark.parametrize("lengths", [[5, 9, 1, 1, 1], [1, 40, 0, 1, 33]])
def test_every_order_of_requests_gives_the_same_bits(
    kernels: ModuleType, name: str, lengths: list[int]
) -> None:
    num_reqs = len(lengths)
    slots = list(range(num_reqs))
    case = Case(sum(lengths), 2, 16, torch.float32, slots, num_reqs)
    whole = {"slots": slots, "has_initial": [True] * num_reqs, "has_track": False}
    qkv, before = case.qkv, case.state
    starts = list(accumulate([0, *lengths]))
    want, want_state = None, None
    orders = list(permutations(slots))
    for order in orders[:: 24 if IS_INTERPRETED else 1]:
        tokens = [token for r in order for token in range(starts[r], starts[r + 1])]
        case.q, case.k, case.v = qkv[tokens].unbind(1)
        case.state = before.clone()
        batch = {**whole, "slots": list(order), "lengths": [lengths[r] for r in order]}
        out = torch.empty_like(case.v)
        out[tokens] = run_prefill(kernels, name, batch)(case)
        if want is None:
            want, want_state = out, case.state
        assert_same_bits(out, want)
        assert_same_bits(case.state[:-1], want_state[:-1])


@pytest.mark.parametrize("name", PREFILLS)
def test_nothing_to_do_launches_nothing_and_writes_nothing(kernels: ModuleType, name: str) -> None:
    case = Case(0, 2, 16, torch.float32, [0], 3)
    before = case.state.clone()
    none = {"slots": [0, 2], "has_initial": [True, False], "has_track": False, "lengths": [0, 0]}
    assert run_prefill(kernels, name, none)(case).shape == (0, 2, 16)
    out = kernels.lightning_decode(
        *(case.q, case.k, case.v, case.state, index([]), flags([]), index([])),
        *(case.log_decay, case.scale),
    )
    assert out.shape == (0, 2, 16)
    assert_same_bits(case.state, before)


@pytest.mark.parametrize("scale", [1.0, 2**-0.5])
def test_the_numbers_computed_by_hand(kernels: ModuleType, scale: float) -> None:
    """Decay 1/2, two dimensions of 16, no others: prefill, decode and verify give the same."""

    def rows(values: list[list[float]]) -> Tensor:
        wide = torch.zeros(3, 1, 16, device=DEVICE)
        wide[:, 0, :2] = torch.tensor(values)
        return wide

    q, k = rows([[1, 1]] * 3), rows([[1, 0], [0, 1], [1, 1]])
    v = rows([[1, 2], [4, 0], [0, 2]])
    want = scale * rows([[1, 2], [4.5, 1], [2.25, 4.5]])
    log_decay = torch.tensor([0.5], device=DEVICE).log()
    slots, is_new, is_old, none = index([0]), flags([False]), flags([True]), index([])
    rest = (log_decay, scale)
    ends = []
    for name in PREFILLS:
        state = torch.full((2, 1, 16, 16), torch.nan, device=DEVICE)
        run = getattr(kernels, name)
        out = run(q, k, v, state, slots, is_new, none, none, index([0, 3]), *rest, 64, 3)
        torch.testing.assert_close(out, want, rtol=1e-6, atol=0)
        ends.append(state[0, 0, :2, :2])
    state = torch.full((2, 1, 16, 16), torch.nan, device=DEVICE)
    for token, has_initial in enumerate((is_new, is_old, is_old)):
        one = (x[token : token + 1] for x in (q, k, v))
        out = kernels.lightning_decode(*one, state, slots, has_initial, none, *rest)
        torch.testing.assert_close(out, want[token : token + 1], rtol=1e-6, atol=0)
    ends.append(state[0, 0, :2, :2])
    state = torch.full((2, 1, 16, 16), torch.nan, device=DEVICE)
    verify = torch.full((2, 2, 1, 32), torch.nan, device=DEVICE)
    out = kernels.lightning_verify(
        q, k, v, state, slots, is_new, index([0, 3]), verify, slots, index([0]), *rest
    )
    torch.testing.assert_close(out, want, rtol=1e-6, atol=0)
    kernels.lightning_commit(state[None], slots, verify[None], slots, index([2]), log_decay[None])
    ends.append(state[0, 0, :2, :2])
    for end in ends:
        torch.testing.assert_close(end.cpu(), torch.tensor([[0.25, 2.5], [2, 2]]))


@pytest.mark.parametrize("name", PREFILLS)
@pytest.mark.parametrize("slope", [0.8409 * 1.03, 1 / 256, 0.0])
def test_no_slope_overflows_or_loses_what_it_keeps(
    kernels: ModuleType, name: str, slope: float
) -> None:
    """Against the recurrence in float64, inputs up to 10, several segments."""
    length = 300 if IS_INTERPRETED else 4096
    case = Case(length, 1, 16, torch.float32, [], 1)
    case.qkv *= 10 / case.qkv.abs().max()
    case.log_decay = torch.tensor([-slope], device=DEVICE)
    batch = {"slots": [0], "has_initial": [False], "has_track": False, "lengths": [length]}
    out = run_prefill(kernels, name, batch)(case)
    wide = Inputs(case.q.cpu(), case.k.cpu(), case.v.cpu(), case.log_decay.cpu(), case.scale)
    want, want_state = wide.recurrence()
    assert_near(out.cpu(), want, 2e-6)
    assert_near(case.state[0].cpu(), want_state, 2e-6)


def test_inputs_that_kernels_would_misread_are_refused(kernels: ModuleType) -> None:
    case = Case(2, 2, 16, torch.float32, [0, 1], 2)
    rows = (index([0, 1]), flags([True, True]), index([]), case.log_decay, case.scale)

    def decode(q: Tensor, state: Tensor) -> None:
        kernels.lightning_decode(q, case.k, case.v, state, *rows)

    with pytest.raises(ValueError, match=r"q is \[2, 1, 16\].* it must be \[2, 2, 16\]"):
        decode(case.q[:, :1], case.state)
    with pytest.raises(ValueError, match="stride 2 in its last dimension"):
        decode(torch.zeros(2, 2, 32, device=DEVICE)[..., ::2], case.state)
    with pytest.raises(ValueError, match="one dtype for all"):
        decode(case.q.double(), case.state)
    with pytest.raises(ValueError, match="not contiguous"):
        decode(case.q, case.state.transpose(-1, -2))
