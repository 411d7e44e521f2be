"""What speculative decoding in SGLang 0.5.23 needs on a CPU, on top of `hooks`."""

import torch
from sglang.srt.plugins.hook_registry import HookRegistry, HookType


def register() -> None:
    HookRegistry.register(
        "sglang.srt.layers.attention.torch_native_backend.TorchNativeAttnBackend"
        "._run_sdpa_forward_extend",
        verify_extends_by_the_drafts,
        HookType.AROUND,
    )
    HookRegistry.register(
        "sglang.kernels.ops.mamba.mamba_state_scatter_triton.fused_mamba_state_scatter_with_mask",
        scatter_states,
        HookType.REPLACE,
    )
    HookRegistry.register(
        "sglang.srt.speculative.draft_utils.DraftBackendFactory.create_draft_extend_backend",
        draft_attends_as_it_loads,
        HookType.AROUND,
    )
    # The Triton versions of tree building and greedy verify; else "no platform seam".
    from sglang.kernels.ops.speculative import spec_tree

    spec_tree._is_xpu = True


def verify_extends_by_the_drafts(original, self, query, output, *args, **kwargs):
    """Verify has no prefix lengths: each request's drafts follow its whole sequence.

    Of `args`: keys, values, slots, request rows, then the three lengths at 4, 5 and 6.
    """
    keys, values, slots, rows, lengths, prefix, extend, *rest = args
    if prefix is None:
        prefix = lengths
        extend = torch.full_like(lengths, query.shape[0] // lengths.shape[0])
        lengths = prefix + extend
    return original(
        self, query, output, keys, values, slots, rows, lengths, prefix, extend, *rest, **kwargs
    )


def draft_attends_as_it_loads(original, factory):
    """Torch's attention is no draft backend; one step needs no other than the draft model's own.

    The Triton one, whose MLA kernel gives garbage in the interpreter, would hide a wrong draft.
    """
    return original(factory) if factory.draft_attn_backend == "triton" else None


def scatter_states(dst, src, dst_indices, step_indices, src_rows=None):
    """Copy each request's state after its last kept draft into its slot; a guard refuses CPUs.

    dst [layers, slots, …], src [layers, rows, drafts, …]; a negative step or slot: leave it.
    """
    for request, step in enumerate(step_indices.tolist()):
        slot = int(dst_indices[request])
        row = request if src_rows is None else int(src_rows[request])
        if step >= 0 and slot >= 0 and row >= 0:
            dst[:, slot] = src[:, row, step].to(dst.dtype)
