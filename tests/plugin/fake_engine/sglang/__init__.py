"""As much of SGLang as the plugin's own commands touch, so that tests need no engine.

What it does about entry points and the registry was observed on the version below;
tests/sglang runs the same commands on the real one.
"""

__version__ = "0.5.23"
