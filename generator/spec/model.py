"""ModelSpec: one model as its author described it, every value stated, typed and traceable.

The classes follow the sections and keys of the YAML one to one; specs/schema.json says what each
key means. Knows nothing of what values entail: that is the IR's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass

from lingen.errors import Position

from .table_entry import MoeTable, TableText, plain_items

Scalar = str | int | float | bool
Value = Scalar | tuple[Scalar | dict[str, object], ...] | None


@dataclass(frozen=True, slots=True)
class RopeScaling:
    rope_type: str
    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    mscale: float | None
    mscale_all_dim: float | None


@dataclass(frozen=True, slots=True)
class Model:
    name: str
    architectures: tuple[str, ...]
    model_type: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    use_bias: bool
    use_qkv_bias: bool
    torch_dtype: str
    pad_token_id: int
    eos_token_id: int
    norm_head: bool


@dataclass(frozen=True, slots=True)
class Pattern:
    layer_group_size: int
    tail: str


@dataclass(frozen=True, slots=True)
class Decay:
    formula: str
    layer_offset: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class Lightning:
    head_dim: int
    partial_rotary_factor: float
    use_qk_norm: bool
    group_norm_size: int
    linear_silu: bool
    decay: Decay
    backend: str


@dataclass(frozen=True, slots=True)
class Mla:
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    lora_norm_eps: float
    rope_interleave: bool


@dataclass(frozen=True, slots=True)
class Gqa:
    num_key_value_heads: int
    head_dim: int
    partial_rotary_factor: float
    use_qk_norm: bool


@dataclass(frozen=True, slots=True)
class Attention:
    """A model has the sections of its architecture, see x-lingen-sections in the schema."""

    pattern: Pattern
    lightning: Lightning | None
    mla: Mla | None
    gqa: Gqa | None


@dataclass(frozen=True, slots=True)
class Mlp:
    intermediate_size: int
    first_k_dense_replace: int


@dataclass(frozen=True, slots=True)
class Moe:
    num_experts: int
    num_experts_per_tok: int
    num_shared_experts: int
    moe_intermediate_size: int
    moe_shared_expert_intermediate_size: int
    n_group: int
    topk_group: int
    routed_scaling_factor: float
    score_function: str
    expert_bias: bool
    renormalize: bool
    router_dtype: str
    overlap_shared_experts: bool


@dataclass(frozen=True, slots=True)
class Mtp:
    num_nextn_predict_layers: int


@dataclass(frozen=True, slots=True)
class Speculative:
    num_draft_tokens: int
    topk: int


@dataclass(frozen=True, slots=True)
class Cache:
    kv_dtype: str
    state_dtype: str
    page_size: int
    mamba_full_memory_ratio: float
    prefix_cache: bool
    extra_buffer: str
    verify_states: str
    speculative: Speculative


@dataclass(frozen=True, slots=True)
class Quantization:
    checkpoint_formats: tuple[str, ...]
    weight_block_size: tuple[int, ...]
    fp8_mtp: bool


@dataclass(frozen=True, slots=True)
class LightningKernels:
    chunk_size: int


@dataclass(frozen=True, slots=True)
class MoeKernels:
    tables: tuple[MoeTable, ...]


@dataclass(frozen=True, slots=True)
class Kernels:
    lightning: LightningKernels | None
    moe: MoeKernels


@dataclass(frozen=True, slots=True)
class Parallel:
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    ep: int


@dataclass(frozen=True, slots=True)
class SGLang:
    tp_size: int
    pp_size: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A spec merged with all it extends, valid by schema and rules.

    Two specs are equal when their values are, wherever the values came from.

    Attributes:
        file: the spec's path as the user gave it.
        sources: display paths of all files that were read, the spec first, then its parents.
        origins: where each dotted key got its value; file `--set` for a value of the command line.
        table_texts: the files of `kernels.moe.tables`, in that order.
    """

    model: Model
    attention: Attention
    mlp: Mlp
    moe: Moe
    mtp: Mtp
    cache: Cache
    quantization: Quantization
    kernels: Kernels
    parallel: Parallel
    sglang: SGLang | None
    targets: tuple[str, ...]
    file: str = field(compare=False)
    sources: tuple[str, ...] = field(compare=False)
    origins: Mapping[str, Position] = field(compare=False, repr=False)
    table_texts: tuple[TableText, ...] = field(default=(), compare=False, repr=False)

    def origin(self, key: str) -> Position:
        """Where the value of a dotted key stands. KeyError for a section or an unknown key."""
        return self.origins[key]

    def values(self) -> dict[str, Value]:
        """Every dotted key with its value, sorted by key; lists are tuples."""
        return dict(sorted(_values(self, "")))

    def as_tree(self) -> dict[str, object]:
        """The values as nested dicts and lists in the order of the schema, ready for dump_yaml."""
        return _tree(self)

    @property
    def resolved_hash(self) -> str:
        """SHA-256 of all values; files, comments and spelling have no part in it."""
        canonical = json.dumps(self.values(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def header_name(self) -> str:
        """How generated files name their spec: the same wherever the spec lies."""
        return f"specs/{self.file.replace(chr(92), '/').rpartition('/')[2]}"


_CONDITIONAL = frozenset(
    {"Lightning | None", "Mla | None", "Gqa | None", "LightningKernels | None", "SGLang | None"}
)
PROVENANCE = frozenset({"file", "sources", "origins", "table_texts"})


def _values(part: object, prefix: str) -> Iterator[tuple[str, Value]]:
    for each in fields(part):
        value = getattr(part, each.name)
        if is_dataclass(value):
            yield from _values(value, f"{prefix}{each.name}.")
        elif each.name not in PROVENANCE and not _is_absent(each.type, value):
            yield f"{prefix}{each.name}", plain_items(value, tuple)


def _is_absent(annotation: str, value: object) -> bool:
    """Whether this is a section that the architecture does not have, not a null that is stated."""
    return value is None and annotation in _CONDITIONAL


def _tree(part: object) -> dict[str, object]:
    tree: dict[str, object] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if each.name in PROVENANCE or _is_absent(each.type, value):
            continue
        if is_dataclass(value):
            tree[each.name] = _tree(value)
        else:
            tree[each.name] = plain_items(value, list)
    return tree
