"""`lingen verify`: runs a generated package on recorded inputs and compares every recorded tensor.

The one part of lingen that needs torch and safetensors; nothing that builds or checks imports it.
"""

from __future__ import annotations

from importlib.util import find_spec

from lingen.errors import EnvironmentLacks


def require_runtime() -> None:
    """Raise EnvironmentLacks if what generated packages import is not installed."""
    missing = [name for name in ("torch", "safetensors") if find_spec(name) is None]
    if missing:
        raise EnvironmentLacks(
            f"verify runs a generated package, and {' and '.join(missing)} cannot be imported\n"
            "  fix       pip install 'lingen[runtime]'"
        )
