"""Greedy decoding with a generated package: the whole life of one request, in plain steps.

python examples/greedy.py PACKAGE_DIR CHECKPOINT_DIR 1,2,3 --max-new-tokens 8
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import torch


def generate(package, checkpoint: str, prompt: list[int], max_new_tokens: int) -> list[int]:
    model = package.ForCausalLM()
    package.load_weights(model, checkpoint)

    # One request: state slot 0, and as many KV pages as its tokens need.
    num_pages = -(-(len(prompt) + max_new_tokens) // package.cache.PAGE_SIZE)
    backend = package.HybridBackend(package.Pools.of_size(num_slots=1, num_pages=num_pages))
    pages = list(range(num_pages))

    new_tokens: list[int] = []
    feed, num_computed = prompt, 0
    with torch.inference_mode():
        while len(new_tokens) < max_new_tokens:
            batch = package.ForwardBatch.from_lists([feed], [num_computed], [0], [pages])
            hidden = model(backend.prepare(batch), backend)  # [T, HIDDEN_SIZE]
            num_computed += len(feed)
            token = int(model.compute_logits(hidden[-1:]).argmax())
            new_tokens.append(token)
            if token == package.model.EOS_TOKEN_ID:
                break
            feed = [token]
    return new_tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="folder that `lingen build` wrote")
    parser.add_argument("checkpoint", help="folder of a checkpoint (safetensors)")
    parser.add_argument("prompt", help="token ids, separated by commas")
    parser.add_argument("--max-new-tokens", type=int, default=8)
    options = parser.parse_args()

    sys.path.insert(0, str(options.package.resolve().parent))
    package = importlib.import_module(options.package.name)
    prompt = [int(token) for token in options.prompt.split(",")]
    print(*generate(package, options.checkpoint, prompt, options.max_new_tokens))


if __name__ == "__main__":
    main()
