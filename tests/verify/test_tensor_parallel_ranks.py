"""`lingen verify --tp N`: real processes over gloo, on recorded cases; and ranks that fail."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import rank_work
import torch
from lingen.cli import run
from lingen.errors import EnvironmentLacks, LingenError
from lingen.ir import lower
from lingen.spec import load_spec
from lingen.verify.package import imported_package, written_package
from lingen.verify.ranks import RankFailed, Ranks, ranks
from safetensors.torch import save_file

GOLDEN = Path(__file__).parents[1] / "golden"
TINY = Path(__file__).parents[1] / "specs" / "tiny.yaml"
TWO = (
    *("bias-tiny", "engine-h128", "hybrid-heads6", "hybrid-mla-h4", "linear-v2-gqa", "mtp"),
    *("qlora", "tail-layers", "v1-gqa", "v1-normhead", "v2-gqa", "v2-mtp"),
)
FOUR = tuple(name for name in TWO if name not in ("hybrid-heads6", "v1-normhead", "v2-mtp"))
# Groups that span ranks, drafts, padded vocabulary and key heads on two ranks are in these.
QUICK = {2: ("mtp", "v1-normhead"), 4: ("engine-h128",)}


def verify(capsys: pytest.CaptureFixture[str], tp: int, cases: tuple[str, ...]) -> list[dict]:
    code = run(["verify", "--json", "--tp", str(tp), *(str(GOLDEN / case) for case in cases)])
    captured = capsys.readouterr()
    assert (code, captured.err) == (0, "")
    report = json.loads(captured.out)
    assert report["passed"] is True
    assert [result["case"] for result in report["cases"]] == list(cases)
    return report["cases"]


@pytest.mark.parametrize("tp", QUICK)
def test_recorded_cases_pass_on_several_ranks(tp: int, capsys) -> None:
    """Every recorded tensor, as one rank is held to; states are those of all ranks together."""
    results = verify(capsys, tp, QUICK[tp])
    names = {check["name"] for result in results for check in result["checks"]}
    assert {"main.embed", "main.logits", "decode.tokens"} <= names
    assert "mtp.draft_logits" in names or tp == 4
    assert "main.layer.0.state" in names


@pytest.mark.long
@pytest.mark.parametrize(("tp", "cases"), [(2, TWO), (4, FOUR)])
def test_every_recorded_case_that_divides_passes(tp: int, cases: tuple[str, ...], capsys) -> None:
    verify(capsys, tp, cases)


@pytest.mark.parametrize(
    ("case", "tp", "keys"),
    [
        ("linear-v2-tail", 2, ("group_norm_size 3", "tp [1, 2]", "num_key_value_heads 3")),
        ("hybrid-heads6", 4, ("num_attention_heads 6", "tp [1, 4]")),
        ("v1-normhead", 4, ("moe_intermediate_size 6", "tp [1, 4]")),
        ("engine-h128", 3, ("num_attention_heads 4", "tp [1, 3]")),
        ("v2-mtp", 6, ("intermediate_size 40", "tp [1, 6]")),
    ],
)
def test_a_size_that_does_not_divide_is_refused_with_both_keys(case, tp, keys, capsys) -> None:
    assert run(["verify", "--tp", str(tp), str(GOLDEN / case)]) == 2
    err = capsys.readouterr().err
    assert "parallel.tp" in err
    for key in keys:
        assert key in err


@pytest.mark.parametrize("tp", ["0", "-2"])
def test_no_ranks_at_all_is_refused(tp: str, capsys) -> None:
    assert run(["verify", "--tp", tp, str(GOLDEN / "mtp")]) == 2
    assert f"--tp {tp}: not a number of ranks" in capsys.readouterr().err


def test_eight_ranks_over_gloo_compute_what_one_computes(tmp_path: Path) -> None:
    """Four norm groups, so each spans two ranks; one head each; random weights."""
    with written_package(lower(load_spec(TINY))) as folder:
        with imported_package(folder) as package:
            weights = random_checkpoint(package)
        save_file(weights, tmp_path / "model.safetensors")
        want = rank_work.served(str(folder), str(tmp_path))
        with ranks(8) as eight:
            got = eight.run(rank_work.served, str(folder), str(tmp_path))
    for (name, expected), *everybodys in zip(want, *got, strict=True):
        for _, logits in everybodys:
            assert torch.equal(logits, everybodys[0][1]), name
        error = (everybodys[0][1] - expected).abs().max() / expected.abs().max()
        assert error < 1e-5, (name, error)


def random_checkpoint(package) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    weights = {}
    for name, target in package.weights.expand(drafts=True).items():
        noise = torch.randn(target.weight.shape, generator=generator)
        is_norm = "norm" in name
        weights[name] = 1 + 0.2 * noise if is_norm else noise / noise.shape[-1] ** 0.5
    return weights


def test_ranks_work_together_and_again() -> None:
    with ranks(2) as two:
        assert two.run(rank_work.summed_ranks) == [1.0, 1.0]
        assert two.run(rank_work.summed_ranks) == [1.0, 1.0]


def assert_all_ended(group: Ranks) -> None:
    assert not any(process.is_alive() for process in group.processes)


def test_a_killed_rank_ends_the_others_at_once() -> None:
    with ranks(3) as three:
        three.run(rank_work.summed_ranks)
        start = time.monotonic()
        with pytest.raises(EnvironmentLacks) as death:
            three.run(rank_work.killed_in_the_middle, 1)
        assert time.monotonic() - start < 20
        assert str(death.value) == "rank 1 of 3 was ended by signal 9 (SIGKILL)"
        assert_all_ended(three)


def test_ranks_do_not_wait_for_ever_for_one_that_does_nothing() -> None:
    with ranks(2, timeout_s=3) as two:
        two.run(rank_work.summed_ranks)
        start = time.monotonic()
        with pytest.raises(EnvironmentLacks) as timeout:
            two.run(rank_work.stopped_in_the_middle, 1)
        assert time.monotonic() - start < 30
        first = str(timeout.value).splitlines()[0]
        assert first == ("rank 0 of 2 waited in vain for the others: no sign of life from rank 1")
        assert_all_ended(two)


def test_what_a_rank_refuses_is_refused_by_all_and_a_bug_stays_one() -> None:
    with ranks(2, timeout_s=20) as two:
        with pytest.raises(LingenError, match=r"^this input is wrong$"):
            two.run(rank_work.refused_by, 1)
        assert_all_ended(two)
    with ranks(2, timeout_s=20) as two, pytest.raises(RankFailed) as bug:
        two.run(rank_work.broken_on, 0)
    assert str(bug.value).startswith("rank 0 of 2 failed\nTraceback")
    assert "ZeroDivisionError: nobody expects this" in str(bug.value)
