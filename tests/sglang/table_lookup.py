"""Runs in the engine's environment: what the engine's own lookup of MoE tables finds.

    python table_lookup.py < QUERIES > ANSWERS

Queries: a list of `{"folder": …, "device": …, "E": …, "N": …, "dtype": …, "block": [n, k], "down":
…}`; the folder is what SGLANG_MOE_CONFIG_DIR is set to. Answers: for each, the table, or null.
"""

import json
import os
import sys
from types import SimpleNamespace

from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe_triton_config as engine

# What a running engine says: tables are passed over only under deterministic inference.
SETTINGS = SimpleNamespace(deterministic=SimpleNamespace(enable_deterministic_inference=False))


def find(query):
    os.environ["SGLANG_MOE_CONFIG_DIR"] = query["folder"]
    engine.get_device_name = lambda *args: query["device"]
    engine.get_moe_configs.cache_clear()  # they do not depend on folder and device
    block_n, block_k = query["block"] or (0, 0)
    return engine.get_moe_configs(
        query["E"], query["N"], query["dtype"], block_n, block_k, down_moe=query["down"]
    )


if __name__ == "__main__":
    engine.get_exec = lambda: SETTINGS
    answers = [find(query) for query in json.load(sys.stdin)]
    json.dump(answers, sys.stdout)
