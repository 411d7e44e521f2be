"""What SGLang 0.5.23 needs on a CPU without its CPU kernels; each hook says why."""

import contextlib

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    for target, hook, kind in (
        ("srt.layers.rotary_embedding.factory.get_rope_wrapper", plain_rope, HookType.REPLACE),
        ("kernels.ops.attention.fla.layernorm_gated._get_sm_count", one_core, HookType.REPLACE),
        ("srt.utils.common.device_context", no_context, HookType.REPLACE),
        (
            "srt.layers.rotary_embedding.base.RotaryEmbedding.forward_cuda",
            native_rope,
            HookType.REPLACE,
        ),
        ("srt.layers.moe.fused_moe_native.moe_forward_native", scaled_moe, HookType.AFTER),
    ):
        HookRegistry.register(f"sglang.{target}", hook, kind)
    use_absorbed_mla()
    # Decode with `extra_buffer` pins memory unguarded: "Cannot access accelerator device".
    torch.Tensor.pin_memory = lambda self, device=None: self


def plain_rope(*args, device=None, **kwargs):
    """On a CPU the engine's own branch knows `deepseek_yarn` alone, and asserts it."""
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    return get_rope(*args, **kwargs)


def one_core(*args, **kwargs):
    """The gated norm reads the number of multiprocessors from CUDA."""
    return 1


def no_context(*args, **kwargs):
    """`torch.cpu` has no `device` context."""
    return contextlib.nullcontext()


def native_rope(self, *args, **kwargs):
    """MLA calls the CUDA method by name."""
    return self.forward_native(*args, **kwargs)


def scaled_moe(output, layer, x, topk_output, config):
    """The native MoE ignores the routed scaling factor, which the kernels apply."""
    factor = config.routed_scaling_factor
    if factor is None or layer.should_fuse_routed_scaling_factor_in_topk:
        return output
    return output * factor


def use_absorbed_mla():
    """Prefill would take the multi-head path on a pool of latents: widths 192 against 576."""
    from sglang.srt.models.deepseek_common.attention_backend_handler import (
        AttentionBackendRegistry,
    )
    from sglang.srt.models.deepseek_common.attention_forward_methods import AttnForwardMethod

    AttentionBackendRegistry.register("torch_native", lambda attn, batch: AttnForwardMethod.MLA)
