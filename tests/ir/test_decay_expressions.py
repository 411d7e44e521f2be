"""The decay as generated code writes it equals the IR's own numbers, to the last bit."""

from __future__ import annotations

import pytest
from lingen.ir.decay import factor_expression, head_slopes, layer_factor, slope_expression


@pytest.mark.parametrize("num_heads", [*range(1, 66), 96, 100, 128])
def test_slopes_of_any_number_of_heads(num_heads):
    assert eval(slope_expression(num_heads)) == head_slopes(num_heads)


@pytest.mark.parametrize("num_layers", [1, 2, 3, 20, 32, 80])
@pytest.mark.parametrize("layer_offset", [0, -1])
def test_factors_of_any_number_of_layers(num_layers, layer_offset):
    text = factor_expression(num_layers, layer_offset, 1e-5)
    for layer in range(num_layers):
        assert eval(text, {"layer": layer}) == layer_factor(layer, num_layers, layer_offset, 1e-5)
