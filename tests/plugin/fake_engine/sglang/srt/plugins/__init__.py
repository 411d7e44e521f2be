"""Loads the selected plugins; one that fails is logged, and no more."""

import importlib.metadata
import logging
import os

logger = logging.getLogger(__name__)


def load_plugins() -> None:
    names = {name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")} - {""}
    for point in importlib.metadata.entry_points(group="sglang.srt.plugins"):
        if names and point.name not in names:
            continue
        try:
            point.load()()
        except Exception:
            logger.exception("Failed to load plugin %s", point.name)
