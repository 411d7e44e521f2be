"""What the SGLang plugin of a model is called, and the engine that it is written for.

The one owner of the pinned engine version: its hook points are private, so each version is checked
before the pin moves.
"""

from __future__ import annotations

from dataclasses import dataclass

from lingen import __version__
from lingen.spec.model import ModelSpec

ENGINE_VERSION = "0.5.23"
PACKAGE_SUFFIX = "_sglang"

# Model class in the engine → its draft class. The engine decides by these names how a model is
# served, so the plugin's must be the same.
ENGINE_CLASSES = {"BailingMoeV2_5ForCausalLM": "BailingMoeForCausalLMNextN"}


@dataclass(frozen=True, slots=True)
class SGLang:
    """package: module, folder and entry point. distribution: what pip calls it.

    version: of the distribution, which is lingen's. draft_class: None without an MTP layer.
    """

    engine_version: str
    version: str
    package: str
    distribution: str
    model_class: str
    draft_class: str | None

    @property
    def classes(self) -> tuple[str, ...]:
        """What the plugin registers, the model first."""
        return (self.model_class, *((self.draft_class,) if self.draft_class else ()))


def lower_sglang(spec: ModelSpec, package: str, drafts: bool) -> SGLang | None:
    """None for an architecture that the target does not serve: a rule refuses it there."""
    [architecture] = spec.model.architectures
    if architecture not in ENGINE_CLASSES:
        return None
    name = package + PACKAGE_SUFFIX
    return SGLang(
        engine_version=ENGINE_VERSION,
        version=__version__,
        package=name,
        distribution=name.replace("_", "-"),
        model_class=architecture,
        draft_class=ENGINE_CLASSES[architecture] if drafts else None,
    )
