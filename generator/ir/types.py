"""The resolved model: every decision made, nothing left to derive. Templates and reports read this.

Frozen and JSON-serialisable (`to_json`). Knows nothing of YAML, templates or torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from lingen.ir.parts import Cache, Gqa, Kernels, Lightning, Mla, Moe, Mtp, Rope
from lingen.ir.plan import LayerPlan
from lingen.ir.sglang import SGLang
from lingen.ir.tables import TunedTable
from lingen.ir.weight_map import ParameterCounts, WeightMap
from lingen.planner.source import planner_source
from lingen.spec.model import ModelSpec
from lingen.tuned.names import moe_shape
from lingen.tuned.source import lookup_source


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Facts of the whole model, under their HF names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    rms_norm_eps: float
    max_position_embeddings: int
    torch_dtype: str
    pad_token_id: int
    eos_token_id: int
    norm_head: bool


@dataclass(frozen=True, slots=True)
class Parallel:
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    ep: int

    @property
    def is_split(self) -> bool:
        """Whether more than one rank may share each layer."""
        return max(self.tp) > 1


@dataclass(frozen=True, slots=True)
class ModelIR:
    name: str
    package: str
    architecture: str
    model_type: str
    model: Dimensions
    plan: LayerPlan
    rope: Rope
    lightning: Lightning | None
    mla: Mla | None
    gqa: Gqa | None
    moe: Moe | None
    mtp: Mtp | None
    kernels: Kernels
    cache: Cache
    weights: WeightMap
    parameters: ParameterCounts
    parallel: Parallel
    tables: tuple[TunedTable, ...]
    targets: tuple[str, ...]
    sglang: SGLang | None
    spec: ModelSpec = dataclasses.field(repr=False)

    @property
    def weight_map_digest(self) -> str:
        return self.weights.digest

    @property
    def planner_source(self) -> str:
        """The cache planner that the package carries: the very text that `lingen plan` runs."""
        return planner_source()

    @property
    def lookup_source(self) -> str:
        """The lookup of tuned tables that the package carries: the text that the rules run."""
        return lookup_source()

    @property
    def has_tables(self) -> bool:
        """Whether the torch package has tuned tables of its experts."""
        return any("torch" in table.targets for table in self.tables)

    @property
    def has_own_tables(self) -> bool:
        """Whether some tables were tuned for the kernels of the torch package itself."""
        return any(set(table.targets) == {"torch"} for table in self.tables)

    def moe_shape(self, tp: int, ep: int = 1) -> tuple[int, int]:
        """(E, N) of the experts' down weight [E, hidden, N] on one rank."""
        return moe_shape(self.moe.num_experts, self.moe.moe_intermediate_size, tp, ep)

    @property
    def norm_groups_span_ranks(self) -> bool:
        """Whether, at a declared size, a rank holds a part of a lightning layer's norm group."""
        return self.lightning is not None and max(self.parallel.tp) > self.lightning.group_norm_size

    @property
    def key_heads_are_repeated(self) -> bool:
        """Whether, at a declared size, several ranks hold the same key head."""
        return self.gqa is not None and max(self.parallel.tp) > self.gqa.num_key_value_heads

    @property
    def vocabulary_is_padded(self) -> bool:
        """Whether, at a declared size, ranks hold rows behind the vocabulary's end."""
        return any(self.model.vocab_size % size for size in self.parallel.tp)

    @property
    def has_kv(self) -> bool:
        """Whether a layer, the MTP layer included, attends over a KV cache."""
        return self.mla is not None or self.gqa is not None

    @property
    def full_class(self) -> str:
        """Class of the full attention layers in generated code."""
        return {"mla": "MLAttention", "gqa": "GroupedQueryAttention"}[self.plan.full_kind]

    @property
    def full_rotary_dim(self) -> str:
        """Constant that holds the rotated width of the full attention layers."""
        return {"mla": "QK_ROPE_HEAD_DIM", "gqa": "ROTARY_DIM"}[self.plan.full_kind]

    @property
    def mtp_kinds(self) -> str:
        return {"mla": "an MLA and MoE layer", "gqa": "a GQA and MoE layer"}[self.plan.full_kind]

    @property
    def halves(self) -> Lightning | Gqa | None:
        """Attention whose heads rotate by halves; where there are two kinds, their widths agree."""
        return self.lightning or self.gqa

    @property
    def mla_scale_is_stretched(self) -> bool:
        return self.rope.yarn is not None and self.rope.yarn.changes_mla_scale

    @property
    def has_verify_rows(self) -> bool:
        """Whether drafts can be verified against a recurrent state."""
        return self.lightning is not None and self.mtp is not None

    @property
    def rotates_halves(self) -> bool:
        return self.lightning is not None or self.gqa is not None

    @property
    def has_layer_kinds(self) -> bool:
        """Whether decoder layers differ in attention or MLP."""
        return self.plan.is_mixed or (self.has_dense and self.has_sparse)

    @property
    def has_dense(self) -> bool:
        return bool(self.plan.dense)

    @property
    def has_sparse(self) -> bool:
        """Whether a decoder layer is a mixture of experts. The MTP layer always is one."""
        return bool(self.plan.moe)

    @property
    def has_side_stream(self) -> bool:
        """Whether decoder layers run their routed experts beside the shared ones."""
        return self.has_sparse and self.moe.has_side_stream

    @property
    def has_skippable(self) -> bool:
        """Whether a checkpoint may hold tensors that the loader passes over."""
        return bool(self.weights.computed) or self.mtp is not None

    @property
    def rotates_whole_heads(self) -> bool:
        return self.halves is not None and self.halves.rotary_dim == self.halves.head_dim

    @property
    def skipped_text(self) -> str:
        """Which tensors of a checkpoint the loader passes over, for its report's docstring."""
        reasons = []
        if self.weights.computed:
            reasons.append("since the model computes them")
        if self.mtp:
            reasons.append("since it does not draft")
        return " or ".join(reasons) or "none so far"

    @property
    def has_mlp(self) -> bool:
        return self.has_dense or (self.moe is not None and self.moe.has_shared_experts)

    def to_json(self) -> dict:
        """Everything but the spec itself, as plain JSON values."""
        return {
            field.name: _plain(getattr(self, field.name))
            for field in dataclasses.fields(self)
            if field.name != "spec"
        }

    def summary(self) -> dict:
        """The architecture in a few lines, for the manifest."""
        return {
            "architecture": self.architecture,
            "parameters": _plain(self.parameters),
            "layers": [
                f"{run.first}..{run.last}: {run.attention} + {run.mlp}" for run in self.plan.runs
            ],
            "mtp_layer": self.mtp.layer_idx if self.mtp else None,
        }


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
