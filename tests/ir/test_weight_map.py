"""The weight map against recorded checkpoints, and parameter counts against published ones."""

import math

import pytest
from golden_cases import CASES, SHIPPED, golden_ir, shipped_ir, tensor_shapes

# Billions: in all, used by one token, MTP layer.
PUBLISHED = {
    "ling-2.6-flash": (104.187, 7.449, 3.307),
    "ling-2.6-1t": (1012.231, 63.580, 13.183),
    "ring-2.5-1t": (1012.231, 63.580, 0.0),
    "ring-mini-linear-2.0": (16.423, 1.601, 0.0),
    "ling-mini-2.0": (16.256, 1.433, 0.0),
    "ling-lite-1.5": (16.802, 2.753, 0.0),
}
# Billions, by part: embedding, lightning and MLA layers (the two dense norms not counted), dense
# MLPs, routed experts, shared experts, routers.
BREAKDOWN = {
    "ling-2.6-flash": (0.6438, 2.349, 0.156, 0.113, 99.858, 0.390, 0.0325),
    "ling-2.6-1t": (1.2877, 23.489, 1.117, 1.812, 979.253, 3.825, 0.1594),
}


def names_and_shapes(ir):
    """Every checkpoint tensor the map names, with its shape; a name twice is an error."""
    found = {}
    for group in ir.weights.groups:
        for layer in group.layers or (None,):
            for weight in group.weights:
                for expert in range(max(1, weight.num_experts)):
                    name = f"{group.name_prefix}{weight.name}".format(layer=layer, expert=expert)
                    assert name not in found
                    found[name] = weight.shape
    return found


@pytest.mark.parametrize("case", CASES)
def test_weight_map_is_exactly_the_recorded_checkpoint(case):
    assert names_and_shapes(golden_ir(case)) == tensor_shapes(case)


@pytest.mark.parametrize("case", CASES)
def test_counts_are_the_elements_of_the_recorded_checkpoint(case):
    ir = golden_ir(case)
    prefix = f"model.layers.{ir.model.num_hidden_layers}."
    sizes = {name: math.prod(shape) for name, shape in tensor_shapes(case).items()}
    mtp = sum(size for name, size in sizes.items() if name.startswith(prefix))
    assert ir.parameters.total == sum(sizes.values()) - mtp
    assert ir.parameters.mtp == mtp


@pytest.mark.parametrize("case", CASES)
def test_active_leaves_out_the_experts_that_a_token_does_not_use(case):
    ir = golden_ir(case)
    idle = [f".mlp.experts.{i}." for i in range(ir.moe.num_experts_per_tok, ir.moe.num_experts)]
    prefix = f"model.layers.{ir.model.num_hidden_layers}."
    used = sum(
        math.prod(shape)
        for name, shape in tensor_shapes(case).items()
        if not name.startswith(prefix) and not any(part in name for part in idle)
    )
    assert ir.parameters.active == used


def test_every_shipped_model_has_published_totals():
    assert set(PUBLISHED) == set(SHIPPED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_are_the_published_ones(name):
    counts = shipped_ir(name).parameters
    rounded = tuple(round(n / 1e9, 3) for n in (counts.total, counts.active, counts.mtp))
    assert rounded == PUBLISHED[name]


@pytest.mark.parametrize("name", BREAKDOWN)
def test_parts_are_the_published_ones(name):
    groups = {group.layer_set: group for group in shipped_ir(name).weights.groups}

    def count(layer_set, start=""):
        group = groups[layer_set]
        weights = [weight for weight in group.weights if weight.name.startswith(start)]
        return max(1, len(group.layers)) * sum(weight.num_parameters for weight in weights)

    parts = (
        count("model", "model.word_embeddings"),
        count("lightning"),
        count("mla"),
        count("dense"),
        count("moe", "mlp.experts"),
        count("moe", "mlp.shared_experts"),
        count("moe", "mlp.gate."),
    )
    for got, want in zip(parts, BREAKDOWN[name], strict=True):
        decimals = len(str(want).partition(".")[2])
        assert round(got / 1e9, decimals) == want
    assert count("model", "lm_head") == parts[0]


def split_weights(ir):
    return [w for group in ir.weights.groups for w in group.weights if w.is_split]


@pytest.mark.parametrize("case", CASES)
def test_split_dimensions_divide_by_every_declared_tp(case):
    ir = golden_ir(case)
    for weight in split_weights(ir):
        size = weight.shape[weight.tp_dim]
        if size == ir.model.vocab_size:
            continue
        for tp in ir.parallel.tp:
            for block in weight.tp_blocks or (size,):
                units = block // weight.tp_unit
                is_shared = weight.has_blocks and tp % units == 0
                assert units % tp == 0 or is_shared, (weight.name, tp)


@pytest.mark.parametrize("case", CASES)
def test_blocks_of_a_split_tensor_fill_it_with_whole_heads(case):
    ir = golden_ir(case)
    fused = [weight for weight in split_weights(ir) if "query_key_value" in weight.name]
    assert fused == [weight for weight in split_weights(ir) if weight.has_blocks]
    for weight in fused:
        assert sum(weight.tp_blocks) == weight.shape[weight.tp_dim]
        assert weight.tp_unit == ir.halves.head_dim
        assert all(block % weight.tp_unit == 0 for block in weight.tp_blocks)


@pytest.mark.parametrize(
    ("name", "layer_set", "blocks"),
    [
        ("ling-2.6-flash", "lightning", (4096, 4096, 4096)),
        ("ring-mini-linear-2.0", "lightning", (2048, 2048, 2048)),
        ("ring-mini-linear-2.0", "gqa", (2048, 512, 512)),
        ("ling-mini-2.0", "gqa", (2048, 512, 512)),
        ("ling-lite-1.5", "gqa", (2048, 512, 512)),
    ],
)
def test_query_key_and_value_are_split_each_on_its_own(name, layer_set, blocks):
    """At tp 8 the 4 key heads of 128 are copied: two ranks share each."""
    ir = shipped_ir(name)
    [group] = [group for group in ir.weights.groups if group.layer_set == layer_set]
    [weight] = [weight for weight in group.weights if "query_key_value" in weight.name]
    assert (weight.tp_dim, weight.tp_blocks, weight.tp_unit) == (0, blocks, 128)
    assert 8 in ir.parallel.tp


def test_biases_are_split_as_the_products_they_belong_to():
    for case in ("v2-mtp", "v1-normhead", "bias-tiny"):
        for group in golden_ir(case).weights.groups:
            by_name = {weight.name: weight for weight in group.weights}
            for name, weight in by_name.items():
                if name.endswith("query_key_value.bias"):
                    product = by_name[name.replace(".bias", ".weight")]
                    assert (weight.tp_blocks, weight.tp_unit) == (
                        product.tp_blocks, product.tp_unit
                    )  # fmt: skip
                elif name.endswith("dense.bias"):
                    assert not weight.is_split


def test_blocks_of_one_parameter_fill_it_without_gaps():
    for group in shipped_ir("ling-2.6-flash").weights.groups:
        blocks = {}
        for weight in group.weights:
            blocks.setdefault(weight.param, []).append(weight)
        for weights in blocks.values():
            assert sorted(weight.part for weight in weights) == list(range(weights[0].parts))
            assert len({weight.shape for weight in weights}) == 1


def test_digest_follows_the_map():
    flash = shipped_ir("ling-2.6-flash")
    one_rank = shipped_ir("ling-2.6-flash", "parallel.tp=[1]", "targets=[torch]")
    assert flash.weight_map_digest == one_rank.weights.digest
    wider = shipped_ir("ling-2.6-flash", "mlp.intermediate_size=9224")
    assert wider.weight_map_digest != flash.weight_map_digest
    assert shipped_ir("ling-2.6-1t").weight_map_digest != flash.weight_map_digest
