"""Makes checkpoint folders for the loader's tests: whole ones, huge empty ones and damaged ones.

Knows the published names of a model's tensors by itself; asks the generated weight map nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

INDEX = "model.safetensors.index.json"
ELEMENT_BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I8": 1, "F8_E4M3": 1}

Described = dict[str, tuple[str, tuple[int, ...]]]
"""Tensor name → safetensors dtype and shape."""


def published(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights under the names of the published checkpoints; views but for fp8."""
    tensors: dict[str, Tensor] = {}
    for name, param in weight_values(model).items():
        name = _published_name(name, len(model.layers))
        stem, _, last = name.rpartition(".experts.")
        if stem and last == "gate_up_proj":
            for expert, rows in enumerate(param):
                gate, up = rows.chunk(2)
                tensors[f"{stem}.experts.{expert}.gate_proj.weight"] = gate
                tensors[f"{stem}.experts.{expert}.up_proj.weight"] = up
        elif stem and last == "down_proj":
            for expert, rows in enumerate(param):
                tensors[f"{stem}.experts.{expert}.down_proj.weight"] = rows
        elif name.endswith("gate_up_proj.weight"):
            gate, up = param.chunk(2)
            tensors[name.replace("gate_up_proj", "gate_proj")] = gate
            tensors[name.replace("gate_up_proj", "up_proj")] = up
        else:
            tensors[name] = param
    return tensors


def _published_name(name: str, num_layers: int) -> str:
    if name.startswith("mtp."):
        return f"model.layers.{num_layers}.{name.removeprefix('mtp.')}"
    return name if name.startswith("lm_head.") else f"model.{name}"


def is_linear(name: str) -> bool:
    """Whether fp8 checkpoints may quantise it: projections, but no router and no table."""
    others = ("norm.weight", "mlp.gate.weight", "word_embeddings.weight", "lm_head.weight", "bias")
    return not name.endswith(others)


def described(tensors: dict[str, Tensor]) -> Described:
    return {name: ("F32", tuple(tensor.shape)) for name, tensor in tensors.items()}


def save(folder: Path, tensors: dict[str, Tensor], file: str = "model.safetensors") -> None:
    folder.mkdir(exist_ok=True)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file)


def save_sharded(folder: Path, shards: dict[str, dict[str, Tensor]]) -> None:
    """Several files and an index that lists all of them."""
    for file, tensors in shards.items():
        save(folder, tensors, file)
    write_index(folder, {name: file for file, tensors in shards.items() for name in tensors})


def write_index(folder: Path, weight_map: object) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def describe_empty(folder: Path, tensors: Described, file: str = "model.safetensors") -> None:
    """A file of zeros that takes no room on disk, for tests that fail before data is read."""
    folder.mkdir(exist_ok=True)
    header: dict[str, object] = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + ELEMENT_BYTES[dtype] * torch.Size(shape).numel()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    write_raw(folder / file, json.dumps(header).encode(), end)


def write_raw(
    file: Path, header: bytes, data_bytes: int, claimed_header_bytes: int | None = None
) -> None:
    """A safetensors file of that header, whatever it says, and so many zeros."""
    length = len(header) if claimed_header_bytes is None else claimed_header_bytes
    with file.open("wb") as stream:
        stream.write(length.to_bytes(8, "little") + header)
        stream.truncate(stream.tell() + data_bytes)


def poisoned(model: nn.Module) -> nn.Module:
    """All parameters NaN: what stays NaN after loading was not filled."""
    for param in model.parameters():
        param.data.fill_(torch.nan)
    return model


def assert_untouched(model: nn.Module) -> None:
    touched = [name for name, param in model.named_parameters() if not param.isnan().all()]
    assert touched == []


def assert_same_weights(got: nn.Module, want: nn.Module) -> None:
    """Bit for bit, fp8 experts by their values. NaN equals nothing."""
    parameters = weight_values(want)
    differing = [n for n, p in weight_values(got).items() if not torch.equal(p, parameters.pop(n))]
    assert (differing, list(parameters)) == ([], [])


def weight_values(model: nn.Module) -> dict[str, Tensor]:
    """Parameters by name; for fp8 experts, each element times the scale looked up for it."""
    buffers = dict(model.named_buffers())
    values = {}
    for name, param in model.named_parameters():
        scale = buffers.get(name.removesuffix("_proj") + "_scale")
        if scale is None:
            values[name] = param.data
            continue
        parts = 2 if name.endswith("gate_up_proj") else 1
        num_experts, rows, columns = param.shape
        shape = torch.Size((rows // parts, columns))
        wide = scale[..., None]
        if scale.dim() == 3:
            by_part = [part for expert in scale for part in expert.chunk(parts)]
            wide = torch.stack([spread(part, shape) for part in by_part])
            wide = wide.view(num_experts, rows, columns)
        values[name] = (param.data.double() * wide.double()).float()
    return values


def refusal(package: ModuleType, model: nn.Module, folder: Path) -> str:
    """The message of the error that loading `folder` into a poisoned model gives."""
    with pytest.raises(package.CheckpointError) as caught:
        package.load_weights(model, folder)
    assert_untouched(model)
    return str(caught.value)


def problems(message: str) -> list[str]:
    """The lines behind the first."""
    return [line.strip() for line in message.splitlines()[1:]]


def quantize_channel(weight: Tensor) -> tuple[Tensor, Tensor]:
    """fp8 rows and one scale per row, [out, 1]."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 448
    return (weight / scale).to(torch.float8_e4m3fn), scale


def quantize_block(weight: Tensor) -> tuple[Tensor, Tensor]:
    """fp8 and one scale per 128x128 block; the last blocks of a side may be smaller."""
    tiles = [[tile for tile in rows.split(128, dim=1)] for rows in weight.split(128)]
    scale = torch.stack([torch.stack([tile.abs().max() for tile in row]) for row in tiles]) / 448
    return (weight / spread(scale, weight.shape)).to(torch.float8_e4m3fn), scale


def spread(scale: Tensor, shape: torch.Size) -> Tensor:
    """Each element's own scale, looked up index by index."""
    rows, columns = torch.arange(shape[0]) // 128, torch.arange(shape[1]) // 128
    return scale[rows][:, columns]


QUANTIZERS = {"_scale": quantize_channel, "_scale_inv": quantize_block}


def quantized(
    tensors: dict[str, Tensor], suffix: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Linears in fp8 with scales, and the same weights in float32 by a float64 product."""
    stored, exact = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if is_linear(name):
            payload, scale = QUANTIZERS[suffix](tensor.float())
            stored[name], stored[name + suffix] = payload, scale
            wide = scale if suffix == "_scale" else spread(scale, tensor.shape)
            exact[name] = (payload.double() * wide.double()).float()
    return stored, exact


def loaded(package: ModuleType, folder: Path, **choices: bool) -> nn.Module:
    model = poisoned(package.ForCausalLM(**choices))
    package.load_weights(model, folder)
    return model


def assert_holds(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Every tensor, in its parameter's dtype, and no parameter beside them."""
    got = published(model)
    assert got.keys() == tensors.keys()
    assert [n for n, t in tensors.items() if not torch.equal(got[n], t.to(got[n].dtype))] == []
