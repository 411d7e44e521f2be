"""Declares torchvision's operators before its first import. Installed into the test environment.

torchvision's wheel carries a CUDA build of its operators, which a CPU-only torch cannot load. Its
import then fails while it registers fake kernels for them. Bare declarations are enough: SGLang
imports torchvision, and no test calls an operator of it.
"""

import sys

WITH_BACKWARD = ("roi_align", "roi_pool", "ps_roi_align", "ps_roi_pool", "deform_conv2d")
OPERATORS = (
    "nms",
    "qnms",
    *WITH_BACKWARD,
    *(f"_{name}_backward" for name in WITH_BACKWARD),
    "_cuda_version",
)


class BeforeTorchvision:
    """An import finder that finds nothing: it declares the operators and steps aside."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            declare()
        return None


def declare():
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for name in OPERATORS:
        library.define(f"{name}() -> ()")
    declare.library = library  # a library that is collected takes its operators with it


sys.meta_path.insert(0, BeforeTorchvision())
