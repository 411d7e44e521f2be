"""A case's config.json → spec → generated package in a temporary folder → module with weights."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch
from lingen.emit.render import render
from lingen.errors import LingenError
from lingen.hf import import_config, name_from
from lingen.ir import ModelIR, lower
from lingen.verify.case import Case
from torch import nn

FALLBACK_NAME = "recorded-case"
FLOAT32_KEYS = ("model.torch_dtype", "cache.kv_dtype", "cache.state_dtype")
_SERIAL = itertools.count()


def lower_case(case: Case, backend: str, layer_offset: int | None, tp: int = 1) -> ModelIR:
    """The case's config as an IR, everything in float32. `layer_offset` None: the family's.

    tp: above 1, a size that the spec must declare; the rules refuse one that does not divide.
    """
    config = case.folder / "config.json"
    name = name_from(config) or FALLBACK_NAME
    choices = [f"{key}=float32" for key in FLOAT32_KEYS]
    spec = import_config(config, name=name, overrides=choices).spec
    if spec.mtp.num_nextn_predict_layers:
        choices.append("cache.speculative.num_draft_tokens=1")
    if spec.attention.lightning:
        choices.append(f"attention.lightning.backend={backend}")
    if spec.attention.lightning and layer_offset is not None:
        choices.append(f"attention.lightning.decay.layer_offset={layer_offset}")
    if tp > 1:
        choices.append(f"parallel.tp=[1, {tp}]")
    return lower(import_config(config, name=name, overrides=choices).spec)


@contextmanager
def generated_package(ir: ModelIR) -> Iterator[ModuleType]:
    """Write the package to a temporary folder and import it, under a name of its own."""
    with written_package(ir) as folder, imported_package(folder) as module:
        yield module


@contextmanager
def written_package(ir: ModelIR) -> Iterator[Path]:
    """The package in a temporary folder, for processes to import."""
    with tempfile.TemporaryDirectory(prefix="lingen-verify-") as root:
        folder = Path(root) / ir.package
        folder.mkdir()
        for path, content in render(ir, "torch").items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
        yield folder


@contextmanager
def imported_package(folder: Path) -> Iterator[ModuleType]:
    """The package in `folder`, imported under a name of its own and forgotten afterwards."""
    name = f"_lingen_verify_{next(_SERIAL)}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        for loaded in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
            del sys.modules[loaded]


def load_model(package: ModuleType, folder: Path, device: str, **choices: object) -> nn.Module:
    """The package's model on `device`, filled from the checkpoint in `folder`.

    choices: of ForCausalLM, such as the tensor-parallel rank.
    """
    with torch.device(device):
        model = package.ForCausalLM(**choices)
    try:
        package.load_weights(model, folder)
    except package.CheckpointError as error:
        raise LingenError(str(error)) from None
    return model.eval()
