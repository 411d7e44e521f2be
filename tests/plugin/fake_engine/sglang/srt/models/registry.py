"""Classes by name: the engine's own, until a plugin registers others."""

import importlib
import pkgutil


class _Registry:
    def __init__(self) -> None:
        names = ("BailingMoeV2_5ForCausalLM", "BailingMoeForCausalLMNextN")
        own = {"__module__": "sglang.srt.models.bailing_moe"}
        self.models = {name: type(name, (), own) for name in names}

    def register(self, package: str, overwrite: bool = False, strict: bool = False) -> None:
        assert overwrite and strict
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
            entry = importlib.import_module(f"{package}.{module.name}").EntryClass
            self.models[entry.__name__] = entry

    def resolve_model_cls(self, names: list[str]) -> tuple[type, str]:
        return self.models[names[0]], names[0]


ModelRegistry = _Registry()
