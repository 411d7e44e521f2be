"""Prints what it was started with."""

import json
import os
import sys

NAMES = ("SGLANG_PLUGINS", "PYTHONSAFEPATH", "SGLANG_MOE_CONFIG_DIR", "SGLANG_ENABLE_PP_SPEC")

if __name__ == "__main__":
    seen = {name: os.environ[name] for name in NAMES if name in os.environ}
    print(json.dumps({"arguments": sys.argv[1:], "variables": seen}))
