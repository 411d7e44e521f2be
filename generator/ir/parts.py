"""The parts of a resolved model: attention kinds, experts, drafting, caches. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decay:
    """`log_decay(l, h) = -head_slopes[h] * layer_factors[l]`, one factor per lightning layer."""

    formula: str
    layer_offset: int
    epsilon: float
    head_slopes: tuple[float, ...]
    layer_factors: tuple[tuple[int, float], ...]
    slope_expression: str
    factor_expression: str


@dataclass(frozen=True, slots=True)
class Lightning:
    num_heads: int
    head_dim: int
    rotary_dim: int
    use_qk_norm: bool
    group_norm_size: int
    group_norm_width: int
    qkv_bias: bool
    dense_bias: bool
    backend: str
    chunk_size: int
    decay: Decay

    @property
    def has_kernels(self) -> bool:
        """Kernels hold heads as tiles, whose sides are powers of two, and tl.dot takes no less."""
        return self.head_dim >= 16 and self.head_dim.bit_count() == 1


@dataclass(frozen=True, slots=True)
class Kernels:
    """Parts of the model with Triton kernels, and those in plain torch on every device."""

    in_triton: tuple[str, ...]
    in_torch: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mla:
    num_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    qk_head_dim: int
    latent_width: int
    lora_norm_eps: float
    bias: bool

    @property
    def has_q_lora(self) -> bool:
        return self.q_lora_rank is not None


@dataclass(frozen=True, slots=True)
class Gqa:
    """Query head h reads key head `h // (num_heads / num_key_value_heads)`."""

    num_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    use_qk_norm: bool
    qkv_bias: bool
    dense_bias: bool


@dataclass(frozen=True, slots=True)
class YarnRamp:
    """For heads that rotate `rotary_dim` dimensions: the pairs between which YaRN fades in."""

    rotary_dim: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Yarn:
    factor: float
    original_max_position_embeddings: int
    ramps: tuple[YarnRamp, ...]
    attention_factor: float
    mla_scale_factor: float

    @property
    def changes_tables(self) -> bool:
        return self.attention_factor != 1.0

    @property
    def changes_mla_scale(self) -> bool:
        return self.mla_scale_factor != 1.0

    @property
    def ramp_table(self) -> dict[int, tuple[float, float]]:
        return {ramp.rotary_dim: (ramp.low, ramp.high) for ramp in self.ramps}


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    yarn: Yarn | None


@dataclass(frozen=True, slots=True)
class Moe:
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    num_shared_experts: int
    shared_intermediate_size: int
    n_group: int
    topk_group: int
    experts_per_group: int
    routed_scaling_factor: float
    score_function: str
    renormalize: bool
    router_dtype: str
    overlap_shared_experts: bool

    @property
    def has_expert_bias(self) -> bool:
        return not self.is_softmax

    @property
    def is_softmax(self) -> bool:
        """Softmax over all experts; else sigmoids with a bias, limited to groups."""
        return self.score_function == "softmax"

    @property
    def limits_groups(self) -> bool:
        """Whether some groups are masked before experts are chosen."""
        return not self.is_softmax and self.topk_group < self.n_group

    @property
    def router_kind(self) -> str:
        return "softmax" if self.is_softmax else "sigmoid_grouped"

    @property
    def has_shared_experts(self) -> bool:
        return self.shared_intermediate_size > 0

    @property
    def has_side_stream(self) -> bool:
        """Routed experts run on a second stream beside the shared ones."""
        return self.overlap_shared_experts and self.has_shared_experts

    @property
    def shared_experts_text(self) -> str:
        if self.num_shared_experts == 1:
            return "one shared expert"
        return f"{self.num_shared_experts} shared experts as one MLP"

    @property
    def normalizes_weights(self) -> bool:
        """One chosen expert keeps its score: its weight would always be 1 otherwise."""
        return self.renormalize and self.num_experts_per_tok > 1


@dataclass(frozen=True, slots=True)
class Mtp:
    """The multi-token-prediction layer: full attention and MoE, stored behind the last layer."""

    layer_idx: int
    pool_idx: int


@dataclass(frozen=True, slots=True)
class Cache:
    """Cache geometry at tp 1, pp 1. The owners of the formulas are in `lingen.ir.cache`."""

    kv_dtype: str
    state_dtype: str
    page_size: int
    num_state_layers: int
    num_kv_layers: int
    num_draft_kv_layers: int
    state_bytes_per_slot: int
    kv_bytes_per_token: int
    slots_per_request: int
    can_branch_unaligned: bool
    mamba_full_memory_ratio: float
    prefix_cache: bool
    extra_buffer: str
    verify_states: str
    num_draft_tokens: int
    draft_topk: int

    @property
    def drafts(self) -> bool:
        """Whether this model drafts unless told otherwise."""
        return self.num_draft_tokens > 0
