"""Templates of a few lines, and where each line of their output comes from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from lingen.emit.render import render
from lingen.emit.sidecar import read_sidecar
from lingen.errors import Position
from lingen.targets import OutputFile, Target


@dataclass(frozen=True)
class Spec:
    header_name: str = "specs/tiny.yaml"
    file: str = "some/place/tiny.yaml"
    resolved_hash: str = "ab" * 32
    origins: dict = field(
        default_factory=lambda: {
            "model.hidden_size": Position("some/place/tiny.yaml", 4, 3),
            "model.eps": Position("some/place/families/base.yaml", 7, 3),
            "attention.heads": Position("some/place/other.yaml", 2, 3),
            "attention.lora": Position("specs/families/shipped.yaml", 9, 3),
        }
    )


@dataclass(frozen=True)
class Attention:
    heads: int = 2
    lora: int | None = None

    @property
    def has_lora(self) -> bool:
        return self.lora is not None


@dataclass(frozen=True)
class Layer:
    name: str
    width: int


@dataclass(frozen=True)
class IR:
    name: str = "tiny"
    package: str = "tiny"
    hidden_size: int = 64
    eps: float = 1e-6
    attention: Attention | None = field(default_factory=Attention)
    layers: tuple[Layer, ...] = (Layer("a", 1), Layer("b", 2))
    facts: tuple[tuple[str, int], ...] = (("hidden_size", 64), ("heads", 2))
    targets: tuple[str, ...] = ("tiny",)
    weight_map_digest: str = "cd" * 32
    spec: Spec = field(default_factory=Spec)

    @property
    def wide_layers(self) -> tuple[Layer, ...]:
        return self.layers[1:]

    def summary(self) -> dict:
        return {}


KEYS = {
    "hidden_size": ("model.hidden_size",),
    "eps": ("model.eps",),
    "attention": ("attention.heads",),
    "attention.heads": ("attention.heads",),
    "attention.lora": ("attention.lora",),
    "attention.has_lora": ("attention.lora",),
    "layers": ("model.eps", "attention.heads"),
    "wide_layers": ("model.eps",),
    "layers[a]": (),
    "layers[b]": ("attention.lora",),
    "layers[a].width": ("model.hidden_size",),
    "layers[b].width": ("attention.heads",),
    "facts": ("model.hidden_size", "attention.heads"),
    "facts[heads]": ("attention.heads",),
    "facts[hidden_size]": ("model.hidden_size", "other.architecture.key"),
}


def keys_of(path: str) -> tuple[str, ...]:
    return KEYS.get(path, ())


def package(text: str, ir: IR = IR(), condition=None, path="m.py", **others: str):
    """The package whose only file has the template `text`; `others` can be included."""
    sources = {"m.j2": text} | {f"{name}.j2": other for name, other in others.items()}
    target = Target("tiny", "", (OutputFile(path, "m.j2", condition),))
    return render(ir, target, sources.__getitem__, keys_of)


def lines(text: str, ir: IR = IR(), condition=None, path="m.py", **others: str) -> list[str]:
    """`line | template:line | keys` of each line of the output, header and blank lines aside.

    Keys without their section, in their order; templates without folder and suffix.
    """
    files = package(text, ir, condition, path, **others)
    output = files[path].decode()
    found = read_sidecar(files["trace.json"]).lines_of(path, output)
    rows = []
    for traced, shown in zip(found, output.split("\n"), strict=False):
        if traced.template is not None:
            name = traced.template.removeprefix("templates/").removesuffix(".j2")
            keys = " ".join(place.key.rpartition(".")[2] for place in traced.spec)
            rows.append(f"{shown.strip()} | {name}:{traced.template_line} | {keys}".rstrip())
    return rows


def without_attention() -> IR:
    return replace(IR(), attention=None)
