"""ModelSpec → ModelIR: asks each owner for its facts and puts them together."""

from __future__ import annotations

from lingen.ir.cache import lower_cache
from lingen.ir.config_facts import config_facts
from lingen.ir.decay import lower_decay
from lingen.ir.kernels import lower_kernels
from lingen.ir.layers import lower_plan
from lingen.ir.parameters import count_parameters
from lingen.ir.parts import Gqa, Lightning, Mla, Moe, Mtp
from lingen.ir.plan import LayerPlan
from lingen.ir.rope import lower_rope, rotary_dim
from lingen.ir.sglang import lower_sglang
from lingen.ir.tables import lower_tables
from lingen.ir.types import Dimensions, ModelIR, Parallel
from lingen.ir.weight_map import WeightMap
from lingen.ir.weights import computed_weights, lower_weights, weight_map_digest
from lingen.spec.model import ModelSpec


def package_name(name: str) -> str:
    """Folder and import name of the generated package: `ling-2.6-1t` → `ling_2_6_1t`."""
    return name.replace("-", "_").replace(".", "_")


def lower(spec: ModelSpec) -> ModelIR:
    """Resolve a validated spec. Raises nothing: the spec's rules refuse what cannot be lowered."""
    plan = lower_plan(spec)
    dims = _dimensions(spec)
    lightning = _lightning(spec, plan) if plan.has_lightning else None
    mtp = Mtp(dims.num_hidden_layers, len(plan.full)) if _drafts(spec) else None
    has_kv = plan.has_full or mtp is not None
    mla = _mla(spec) if has_kv and spec.attention.mla else None
    gqa = _gqa(spec) if has_kv and spec.attention.gqa else None
    moe = _moe(spec) if plan.moe or mtp else None
    groups = lower_weights(dims, plan, lightning, mla, gqa, moe, mtp)
    package = package_name(spec.model.name)
    return ModelIR(
        name=spec.model.name,
        package=package,
        architecture=spec.model.architectures[0],
        model_type=spec.model.model_type,
        model=dims,
        plan=plan,
        rope=lower_rope(spec, _rotary_dims(lightning, mla, gqa)),
        lightning=lightning,
        mla=mla,
        gqa=gqa,
        moe=moe,
        mtp=mtp,
        kernels=lower_kernels(lightning, mla, gqa, moe),
        cache=lower_cache(spec, plan, lightning, mla, gqa, mtp),
        weights=WeightMap(
            groups=groups,
            computed=computed_weights(lightning),
            digest=weight_map_digest(groups),
            config_facts=config_facts(spec),
            checkpoint_formats=spec.quantization.checkpoint_formats,
            weight_block_size=spec.quantization.weight_block_size,
            fp8_mtp=spec.quantization.fp8_mtp,
        ),
        parameters=count_parameters(groups, moe),
        parallel=Parallel(spec.parallel.tp, spec.parallel.pp, spec.parallel.ep),
        tables=lower_tables(spec),
        targets=spec.targets,
        sglang=lower_sglang(spec, package, mtp is not None),
        spec=spec,
    )


def _drafts(spec: ModelSpec) -> bool:
    return spec.mtp.num_nextn_predict_layers > 0


def _dimensions(spec: ModelSpec) -> Dimensions:
    model = spec.model
    return Dimensions(
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        intermediate_size=spec.mlp.intermediate_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.num_attention_heads,
        rms_norm_eps=model.rms_norm_eps,
        max_position_embeddings=model.max_position_embeddings,
        torch_dtype=model.torch_dtype,
        pad_token_id=model.pad_token_id,
        eos_token_id=model.eos_token_id,
        norm_head=model.norm_head,
    )


def _lightning(spec: ModelSpec, plan: LayerPlan) -> Lightning:
    a = spec.attention.lightning
    heads = spec.model.num_attention_heads
    return Lightning(
        num_heads=heads,
        head_dim=a.head_dim,
        rotary_dim=rotary_dim(a.head_dim, a.partial_rotary_factor),
        use_qk_norm=a.use_qk_norm,
        group_norm_size=a.group_norm_size,
        group_norm_width=heads * a.head_dim // a.group_norm_size,
        qkv_bias=spec.model.use_qkv_bias,
        dense_bias=spec.model.use_bias,
        backend=a.backend,
        chunk_size=spec.kernels.lightning.chunk_size,
        decay=lower_decay(spec, plan),
    )


def _mla(spec: ModelSpec) -> Mla:
    a = spec.attention.mla
    return Mla(
        num_heads=spec.model.num_attention_heads,
        q_lora_rank=a.q_lora_rank,
        kv_lora_rank=a.kv_lora_rank,
        qk_nope_head_dim=a.qk_nope_head_dim,
        qk_rope_head_dim=a.qk_rope_head_dim,
        v_head_dim=a.v_head_dim,
        qk_head_dim=a.qk_nope_head_dim + a.qk_rope_head_dim,
        latent_width=a.kv_lora_rank + a.qk_rope_head_dim,
        lora_norm_eps=a.lora_norm_eps,
        # In MLA layers use_qkv_bias decides about `dense` too: the vendor's modeling file.
        bias=spec.model.use_qkv_bias,
    )


def _gqa(spec: ModelSpec) -> Gqa:
    a = spec.attention.gqa
    return Gqa(
        num_heads=spec.model.num_attention_heads,
        num_key_value_heads=a.num_key_value_heads,
        head_dim=a.head_dim,
        rotary_dim=rotary_dim(a.head_dim, a.partial_rotary_factor),
        use_qk_norm=a.use_qk_norm,
        qkv_bias=spec.model.use_qkv_bias,
        dense_bias=spec.model.use_bias,
    )


def _rotary_dims(lightning: Lightning | None, mla: Mla | None, gqa: Gqa | None) -> list[int]:
    """Rotated width of each kind of attention that the model has."""
    widths = [part.rotary_dim for part in (lightning, gqa) if part is not None]
    return [*widths, mla.qk_rope_head_dim] if mla is not None else widths


def _moe(spec: ModelSpec) -> Moe:
    moe = spec.moe
    return Moe(
        num_experts=moe.num_experts,
        num_experts_per_tok=moe.num_experts_per_tok,
        moe_intermediate_size=moe.moe_intermediate_size,
        num_shared_experts=moe.num_shared_experts,
        shared_intermediate_size=moe.moe_shared_expert_intermediate_size * moe.num_shared_experts,
        n_group=moe.n_group,
        topk_group=moe.topk_group,
        experts_per_group=moe.num_experts // moe.n_group,
        routed_scaling_factor=moe.routed_scaling_factor,
        score_function=moe.score_function,
        renormalize=moe.renormalize,
        router_dtype=moe.router_dtype,
        overlap_shared_experts=moe.overlap_shared_experts,
    )
