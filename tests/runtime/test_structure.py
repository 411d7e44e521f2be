"""The published models on the meta device: the loader's tables against the list of tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from lingen.ir import ModelIR
from lingen.verify.package import generated_package
from published import assert_every_element_is_filled_once
from small_models import lowered
from torch import nn

SPECS = Path(__file__).parents[2] / "specs"

# Names and [out, in] shapes of the published checkpoints, written down from descriptions of the
# files: the flash column, then the column of the 1T models.
WHOLE = {
    "model.word_embeddings.weight": ((157184, 4096), (157184, 8192)),
    "model.norm.weight": ((4096,), (8192,)),
    "lm_head.weight": ((157184, 4096), (157184, 8192)),
}
EVERY_LAYER = {
    "input_layernorm.weight": ((4096,), (8192,)),
    "post_attention_layernorm.weight": ((4096,), (8192,)),
}
LIGHTNING = {
    "attention.query_key_value.weight": ((12288, 4096), (24576, 8192)),
    "attention.query_layernorm.weight": ((128,), (128,)),
    "attention.key_layernorm.weight": ((128,), (128,)),
    "attention.g_proj.weight": ((4096, 4096), (8192, 8192)),
    "attention.g_norm.weight": ((4096,), (8192,)),
    "attention.dense.weight": ((4096, 4096), (8192, 8192)),
}
MLA = {
    "attention.q_a_proj.weight": ((1536, 4096), (1536, 8192)),
    "attention.q_a_layernorm.weight": ((1536,), (1536,)),
    "attention.q_b_proj.weight": ((6144, 1536), (12288, 1536)),
    "attention.kv_a_proj_with_mqa.weight": ((576, 4096), (576, 8192)),
    "attention.kv_a_layernorm.weight": ((512,), (512,)),
    "attention.kv_b_proj.weight": ((8192, 512), (16384, 512)),
    "attention.dense.weight": ((4096, 4096), (8192, 8192)),
}
DENSE = {
    "mlp.gate_proj.weight": ((9216, 4096), (18432, 8192)),
    "mlp.up_proj.weight": ((9216, 4096), (18432, 8192)),
    "mlp.down_proj.weight": ((4096, 9216), (8192, 18432)),
}
MOE = {
    "mlp.gate.weight": ((256, 4096), (256, 8192)),
    "mlp.gate.expert_bias": ((256,), (256,)),
    **{
        f"mlp.{experts}.{name}.weight": shapes
        for experts in (*(f"experts.{e}" for e in range(256)), "shared_experts")
        for name, shapes in {
            "gate_proj": ((1024, 4096), (2048, 8192)),
            "up_proj": ((1024, 4096), (2048, 8192)),
            "down_proj": ((4096, 1024), (8192, 2048)),
        }.items()
    },
}
MTP = {
    "enorm.weight": ((4096,), (8192,)),
    "hnorm.weight": ((4096,), (8192,)),
    "final_layernorm.weight": ((4096,), (8192,)),
    "eh_proj.weight": ((4096, 8192), (8192, 16384)),
    **EVERY_LAYER,
    **MLA,
    **MOE,
}


@dataclass(frozen=True)
class Published:
    """What is known of a published model. Parameter counts in billions, as models are quoted."""

    column: int
    num_layers: int
    mla_layers: tuple[int, ...]
    num_dense: int
    has_mtp: bool
    num_tensors: int
    billions: str
    mtp_billions: str

    def tensors(self) -> dict[str, tuple[int, ...]]:
        shapes = dict(WHOLE)
        for layer in range(self.num_layers):
            attention = MLA if layer in self.mla_layers else LIGHTNING
            mlp = DENSE if layer < self.num_dense else MOE
            for name, both in {**EVERY_LAYER, **attention, **mlp}.items():
                shapes[f"model.layers.{layer}.{name}"] = both
        if self.has_mtp:
            shapes |= {f"model.layers.{self.num_layers}.{name}": both for name, both in MTP.items()}
        return {name: both[self.column] for name, both in shapes.items()}


MLA_OF_1T = (7, 15, 23, 31, 39, 47, 55, 63, 71, 79)
MODELS = {
    "ling-2.6-flash": Published(0, 32, (7, 15, 23, 31), 1, True, 25_015, "104.187", "3.307"),
    "ling-2.6-1t": Published(1, 80, MLA_OF_1T, 4, True, 60_199, "1012.231", "13.183"),
    "ring-2.5-1t": Published(1, 80, MLA_OF_1T, 4, False, 59_413, "1012.231", "0.000"),
}


@dataclass(frozen=True)
class Built:
    """A generated package and its whole model, without memory."""

    published: Published
    ir: ModelIR
    package: ModuleType
    model: nn.Module
    targets: dict[str, object]


@pytest.fixture(scope="module", params=MODELS)
def built(request: pytest.FixtureRequest) -> Iterator[Built]:
    ir = lowered(spec=SPECS / f"{request.param}.yaml")
    with generated_package(ir) as package:
        with torch.device("meta"):
            model = package.ForCausalLM(**({"drafts": True} if ir.mtp else {}))
        targets = package.weights.expand(*([True] if ir.mtp else []))
        yield Built(MODELS[request.param], ir, package, model, targets)


def test_the_loader_reads_exactly_the_published_tensors(built):
    published = built.published.tensors()
    read = {name: target.weight.shape for name, target in built.targets.items()}
    assert sorted(published.keys() - read.keys()) == []
    assert sorted(read.keys() - published.keys()) == []
    assert {name: shape for name, shape in read.items() if published[name] != shape} == {}
    assert len(read) == built.published.num_tensors


def test_every_element_of_every_parameter_is_filled_exactly_once(built):
    assert_every_element_is_filled_once(built.model, built.targets)


def test_experts_are_stacked_in_two_parameters(built):
    hidden, width = ((4096, 1024), (8192, 2048))[built.published.column]
    moes = [layer.mlp for layer in built.model.layers[built.published.num_dense :]]
    if built.published.has_mtp:
        moes.append(built.model.mtp.mlp)
    assert {tuple(moe.experts.gate_up_proj.shape) for moe in moes} == {(256, 2 * width, hidden)}
    assert {tuple(moe.experts.down_proj.shape) for moe in moes} == {(256, hidden, width)}


def test_the_number_of_parameters_is_the_published_one(built):
    counts = built.ir.parameters
    mtp = sum(p.numel() for name, p in built.model.named_parameters() if name.startswith("mtp."))
    total = sum(p.numel() for p in built.model.parameters())
    assert (total, mtp) == (counts.total + counts.mtp, counts.mtp)
    assert total == sum(math.prod(shape) for shape in built.published.tensors().values())
    assert f"{counts.total / 1e9:.3f}" == built.published.billions
    assert f"{mtp / 1e9:.3f}" == built.published.mtp_billions


def test_routers_are_float32_and_everything_else_bfloat16(built):
    for name, param in built.model.named_parameters():
        is_router = re.search(r"\.mlp\.gate\.(weight|expert_bias)$", name)
        assert param.dtype == (torch.float32 if is_router else torch.bfloat16), name


def test_without_drafts_exactly_the_mtp_layer_is_gone(built):
    if not built.published.has_mtp:
        assert not hasattr(built.model, "mtp")
        return
    with torch.device("meta"):
        model = built.package.ForCausalLM(drafts=False)
    gone = {name for name, _ in built.model.named_parameters()}
    gone -= {name for name, _ in model.named_parameters()}
    assert gone == {name for name, _ in built.model.named_parameters() if name.startswith("mtp.")}
    expand = built.package.weights.expand
    prefix = f"model.layers.{built.published.num_layers}."
    assert expand(True).keys() - expand(False).keys() == {f"{prefix}{name}" for name in MTP}
