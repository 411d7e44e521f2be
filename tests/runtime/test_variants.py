"""Every architecture the templates tell apart: a clean package and a consistent model."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from comparison import TOLERANCES, assert_close, relative_error
from lingen.emit.render import render
from lingen.ir import ModelIR
from lingen.verify.package import generated_package
from serving import NUM_PAGES, NUM_SLOTS, Server, requests_of
from small_models import SIBLINGS, VARIANTS, fill_randomly, lowered, lowered_variant
from torch import nn

SPECS = Path(__file__).parents[2] / "specs"
PUBLISHED = sorted(path.stem for path in SPECS.glob("*.yaml"))
MAX_LINE_LENGTH = 100
# What only callers need: the tokenizer, the scheduler, a loader for several ranks.
FOR_CALLERS = {
    *("MAX_POSITION_EMBEDDINGS", "PAD_TOKEN_ID", "EOS_TOKEN_ID", "BRANCHES_ANYWHERE"),
    *("shard", "__all__"),
    "quantize_weight",  # of kernels/moe.py: a caller's weights, per output channel
    *("CONFIGS", "find_tables"),  # of tables.py: the expert kernels of a caller
}
# Four layers with sums in another order; measured: up to 2e-5.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Variant:
    ir: ModelIR
    package: ModuleType

    @property
    def folder(self) -> Path:
        return Path(self.package.__file__).parent

    def model(self) -> nn.Module:
        return fill_randomly(self.package.ForCausalLM())

    def drafting_server(self) -> Server:
        model = fill_randomly(self.package.ForCausalLM(drafts=True))
        return Server(
            self.package, model, self.package.Pools.of_size(NUM_SLOTS, NUM_PAGES, draft_tokens=1)
        )


@pytest.fixture(scope="module", params=[*VARIANTS, *SIBLINGS])
def variant(request: pytest.FixtureRequest) -> Iterator[Variant]:
    ir = lowered_variant(request.param)
    with generated_package(ir) as package:
        yield Variant(ir, package)


@pytest.fixture(scope="module", params=PUBLISHED)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a published model's package."""
    folder = tmp_path_factory.mktemp("package") / "published"
    folder.mkdir()
    for path, content in render(lowered(spec=SPECS / f"{request.param}.yaml"), "torch").items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def assert_clean(folder: Path) -> None:
    """No complaint of ruff, no long line, and no constant or function that nothing uses."""
    rules = ["--select=E,F,I,B,UP,SIM,RUF", "--ignore=E501,RUF001,RUF002,RUF003"]
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--target-version=py311"]
    checked = subprocess.run([*command, *rules, folder], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    for path in sorted(folder.rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            is_header = number <= 3 and line.startswith("#")
            assert len(line) <= MAX_LINE_LENGTH or is_header, f"{path.name}:{number}"
    assert unused_names(folder) == []


def unused_names(folder: Path) -> list[str]:
    """What a module defines or imports at its top level and no module of the package reads."""
    defined, read = set(), set()
    for path in folder.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in tree.body:
            defined |= {(path.name, name) for name in names_made_by(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                read.add(node.id)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                read |= {"__all__", *ast.literal_eval(node.value)}
    return sorted(f"{file}: {name}" for file, name in defined if name not in read | FOR_CALLERS)


def names_made_by(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ImportFrom | ast.Import):
        names = {alias.asname or alias.name for alias in node.names}
        return set() if getattr(node, "module", "") == "__future__" else names
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    return {
        name.id
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }


def test_prefixes_branch_anywhere_if_and_only_if_no_layer_has_a_state(variant: Variant) -> None:
    kinds = {layer.attention for layer in variant.ir.plan.layers}
    assert variant.package.cache.BRANCHES_ANYWHERE is ("lightning" not in kinds)


def test_package_of_a_small_model_is_clean(variant: Variant) -> None:
    assert_clean(variant.folder)


def test_package_of_a_published_model_is_clean(published: Path) -> None:
    assert_clean(published)


def test_published_model_fits_in_1200_lines(published: Path) -> None:
    assert len((published / "model.py").read_text(encoding="utf-8").splitlines()) <= 1200


def test_unused_constant_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\nUSED = 1\nUNUSED = USED\nPAD_TOKEN_ID = 2\n")
    assert unused_names(tmp_path) == ["model.py: UNUSED", "model.py: torch"]


def test_model_has_the_parameters_that_the_plan_counts(variant: Variant) -> None:
    drafts = {"drafts": True} if variant.ir.mtp else {}
    model = variant.package.ForCausalLM(**drafts)
    drafting = [p.numel() for n, p in model.named_parameters() if n.startswith("mtp.")]
    total = sum(p.numel() for p in model.parameters())
    counts = variant.ir.parameters
    assert (total - sum(drafting), sum(drafting)) == (counts.total, counts.mtp)


def assert_similar(variant: Variant, got: torch.Tensor, want: torch.Tensor) -> None:
    if variant.ir.model.torch_dtype == "bfloat16":
        # Each layer rounds to 2^-9, and a token near a tie of two experts may change its mind.
        assert got.isfinite().all()
        assert relative_error(got, want) < 10 * TOLERANCES[torch.bfloat16]
    elif variant.ir.cache.state_dtype == "bfloat16":
        # A prefill rounds the state once, decodes round it each time.
        assert relative_error(got, want) < TOLERANCES[torch.bfloat16]
    else:
        assert_close(got, want, TOLERANCE)


def test_decode_and_chunks_equal_prefill(variant: Variant) -> None:
    model = variant.model()
    [whole] = requests_of([35], 160)
    [want] = Server(variant.package, model).step((whole, 35))
    assert want.isfinite().all()
    server = Server(variant.package, model)
    [request] = requests_of([35], 160)
    outs = [server.step((request, count))[0] for count in (9, 20, 1, 1, 1, 1, 1, 1)]
    assert_similar(variant, torch.cat(outs), want)


def test_mixed_batch_equals_single_requests(variant: Variant) -> None:
    model = variant.model()
    lengths = [6, 20, 17]
    singles = []
    for request, length in zip(requests_of(lengths, 160), lengths, strict=True):
        singles += Server(variant.package, model).step((request, length))
    server = Server(variant.package, model)
    a, b, c = requests_of(lengths, 160)
    first = server.step((c, 16), (None, 2), (b, 4))
    outs = server.step((b, 16), (None, 1), (c, 1), (a, 6))
    for got, want in (
        (torch.cat([first[0], outs[2]]), singles[2]),
        (torch.cat([first[2], outs[0]]), singles[1]),
        (outs[3], singles[0]),
    ):
        assert_similar(variant, got, want)


def test_padded_decode_writes_no_usable_memory(variant: Variant) -> None:
    server = Server(variant.package, variant.model())
    outs = server.step((None, 1), (None, 1))
    assert all(out.isfinite().all() for out in outs)
    assert all(pool.isnan().all() for pool in server.usable_without([]).values())


def test_drafts_of_decodes_equal_those_of_a_prefill(variant: Variant) -> None:
    if not variant.ir.mtp:
        assert not hasattr(variant.package.ForCausalLM(), "draft")
        return
    [whole] = requests_of([19], 160)
    ids = [*whole.tokens[1:], 0]
    [want] = variant.drafting_server().step_and_draft(ids, (whole, 19))
    server = variant.drafting_server()
    [request] = requests_of([19], 160)
    outs = server.step_and_draft(ids[:17], (request, 17))
    for place in (17, 18):
        outs += server.step_and_draft([ids[place]], (request, 1))
    assert_similar(variant, torch.cat(outs), want)


def test_drafting_and_its_cache_are_there_by_default_if_the_spec_drafts(variant: Variant) -> None:
    ir, package = variant.ir, variant.package
    drafts = ir.mtp is not None and ir.spec.cache.speculative.num_draft_tokens > 0
    assert (getattr(package.ForCausalLM(), "mtp", None) is not None) == drafts
    pools = package.Pools.of_size(num_slots=2, num_pages=3)
    per_token = pools.kv.nbytes // (4 * 16) if hasattr(pools, "kv") else 0
    assert per_token == ir.cache.kv_bytes_per_token
    if ir.mtp:
        for choice in (True, False):
            pools = package.Pools.of_size(num_slots=2, num_pages=3, draft_tokens=int(choice))
            assert pools.kv.shape[0] == len(ir.plan.full) + choice
            assert (package.ForCausalLM(drafts=choice).mtp is not None) == choice
