"""Stages of a model: layers split unevenly at the end, bytes as the pools' shapes have them."""

import math
from pathlib import Path

import pytest
from lingen.ir import lower
from lingen.planner import Options, pipeline_stages, plan_cache
from lingen.sizing.geometry import geometry_of, why_not_pp, why_not_tp
from lingen.spec import load_spec, load_spec_text

ROOT = Path(__file__).parents[2]
SPECS = sorted(path.stem for path in (ROOT / "specs").glob("*.yaml"))
MIB = 1 << 20
WIDE = """
extends: ling-2.6-flash
model: {name: wide}
moe: {moe_intermediate_size: 1028}
parallel: {tp: [1, 2, 4]}
"""


def shipped(name):
    return lower(load_spec(ROOT / "specs" / f"{name}.yaml"))


@pytest.mark.parametrize(
    ("layers", "pp", "sizes"),
    [
        (32, 1, [32]),
        (32, 4, [8] * 4),
        (80, 3, [26, 27, 27]),
        (32, 3, [10, 11, 11]),
        (7, 4, [1, 2, 2, 2]),
    ],
)
def test_the_last_stages_take_what_is_left(layers, pp, sizes):
    stages = pipeline_stages(layers, pp)
    assert [len(stage) for stage in stages] == sizes
    assert [layer for stage in stages for layer in stage] == list(range(layers))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("pp", [1, 2, 3, 4])
def test_stages_add_up_to_the_model(name, pp):
    ir = shipped(name)
    whole, parts = geometry_of(ir), geometry_of(ir, pp=pp)
    for field in ("state_bytes", "replay_bytes", "kv_bytes", "draft_kv_bytes"):
        [expected] = [getattr(stage, field) for stage in whole.stages]
        assert sum(getattr(stage, field) for stage in parts.stages) == expected
    assert whole.stages[0].state_bytes == ir.cache.state_bytes_per_slot
    assert not any(stage.draft_kv_bytes for stage in parts.stages[:-1])


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("states", ["replay", "snapshot"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_planned_bytes_are_those_of_the_documented_shapes(tp, drafts, states, dtype):
    text = (ROOT / "specs/ling-2.6-flash.yaml").read_text()
    text += f"\ncache:\n  state_dtype: {dtype}\n"
    ir = lower(load_spec_text(text, str(ROOT / "specs/flash.yaml")))
    options = Options(20 << 30, 64, draft_tokens=drafts, verify_states=states)
    plan = plan_cache(geometry_of(ir, tp), options)
    heads, element = 32 // tp, {"float32": 4, "bfloat16": 2}[dtype]
    state = math.prod((28, plan.max_state_slots + 1, heads, 128, 128)) * element
    kv = math.prod((5 if drafts else 4, plan.kv_pages + 1, 64, 576)) * 2
    rows = plan.verify_rows + 1
    if states == "replay":
        verify = math.prod((28, rows, drafts, heads, 128 + 128)) * 2
    else:
        verify = math.prod((28, rows, drafts, heads, 128, 128)) * element
    assert (plan.state_bytes, plan.verify_bytes, plan.kv_bytes) == (state, verify, kv)


def test_latent_rows_are_whole_on_every_rank_and_states_are_split():
    ir = shipped("ling-2.6-flash")
    assert [geometry_of(ir, tp).stages[0].state_bytes // MIB for tp in (1, 2, 8)] == [56, 28, 7]
    assert {geometry_of(ir, tp).stages[0].kv_bytes for tp in (1, 2, 8)} == {4608}


@pytest.mark.parametrize("name", SPECS)
def test_declared_sizes_are_accepted(name):
    ir = shipped(name)
    assert [why_not_tp(ir, tp) for tp in ir.parallel.tp] == [None] * len(ir.parallel.tp)
    assert [why_not_pp(ir, pp) for pp in ir.parallel.pp] == [None] * len(ir.parallel.pp)


def test_sizes_that_cannot_be_are_refused_with_what_can():
    ir = shipped("ling-2.6-flash")
    assert why_not_tp(ir, 3) == "a divisor or a multiple of group_norm_size 4"
    assert why_not_tp(ir, 64) == "a divisor of num_attention_heads 32"
    wide = lower(load_spec_text(WIDE, str(ROOT / "specs/wide.yaml")))
    assert why_not_tp(wide, 8) == "a divisor of 1028, as mlp.experts.gate_up_proj is split by it"
    assert why_not_tp(ir, 0) == "at least 1"
    assert why_not_pp(ir, 33) == why_not_pp(ir, 0) == "1 to 32, the number of layers"
