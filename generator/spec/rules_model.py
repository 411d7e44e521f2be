"""Rules between the keys of the model, its attention, its caches and its parallel sizes."""

from __future__ import annotations

import keyword
import re
import sys
import unicodedata
from collections.abc import Iterator, Sequence

from .rule import Refusal, Rule, join, why_not_split

MAX_NAME_CHARACTERS = 64

# What a generated package imports beside the standard library.
_IMPORTED = frozenset({"torch", "triton", "safetensors", "tokenizers"})
_NAME = re.compile(r"[a-z][a-z0-9]*([.-][a-z0-9]+)*")


def why_not_name(name: str) -> Refusal | None:
    """The name becomes a folder, a package and text in source files."""
    expected = "lower-case letters and digits in parts joined by `-` or `.`, a letter first"
    if not _NAME.fullmatch(name):
        return Refusal("not a name for a model", expected)
    if len(name) > MAX_NAME_CHARACTERS:
        return Refusal("too long", f"at most {MAX_NAME_CHARACTERS} characters")
    package = name.replace("-", "_").replace(".", "_")
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        return Refusal("a Python keyword, so no name for a package", "any other name")
    if package in sys.stdlib_module_names or package in _IMPORTED:
        return Refusal("a Python module, which the package would stand before", "any other name")
    return None


def nearest_name(name: str) -> Iterator[str]:
    """Legal names that resemble `name`, if anything is left of it."""
    ascii_name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub("[^a-z0-9.]+", "-", ascii_name)
    slug = re.sub("[.-]*-[.-]*", "-", re.sub(r"\.+", ".", slug)).strip(".-")
    if slug:
        yield slug[:MAX_NAME_CHARACTERS].rstrip(".-")
        yield f"{slug}-model"
        yield f"model-{slug}"


def why_not_heads_per_tp(num_attention_heads: int, tp: Sequence[int]) -> Refusal | None:
    return why_not_split("num_attention_heads", num_attention_heads, tp)


def why_not_norm_groups_per_tp(group_norm_size: int, tp: Sequence[int]) -> Refusal | None:
    """Ranks hold whole groups, or groups span whole ranks."""
    bad = [size for size in tp if group_norm_size % size and size % group_norm_size]
    if not bad:
        return None
    return Refusal(
        f"neither group_norm_size nor tp {join(bad)} divides the other",
        "one of the two divides the other, for each size in parallel.tp",
    )


def why_not_heads_per_norm_group(num_attention_heads: int, group_norm_size: int) -> Refusal | None:
    if num_attention_heads % group_norm_size == 0:
        return None
    return Refusal(
        "num_attention_heads is not a multiple of group_norm_size",
        "group_norm_size, a number of groups, that divides num_attention_heads",
    )


def why_not_dense_width_per_tp(intermediate_size: int, tp: Sequence[int]) -> Refusal | None:
    return why_not_split("intermediate_size", intermediate_size, tp)


def why_not_rotary_width(partial_rotary_factor: float, head_dim: int) -> Refusal | None:
    width = int(head_dim * partial_rotary_factor)
    if width >= 2 and width % 2 == 0:
        return None
    return Refusal(
        f"the rotated width int(head_dim * partial_rotary_factor) is {width}",
        "an even width of at least 2, since pairs are rotated",
    )


def even_rotary_factors(partial_rotary_factor: float, head_dim: int) -> list[float]:
    """Factors that give an even width exactly, nearest first."""
    factors = [width / head_dim for width in range(2, head_dim + 1, 2)]
    return sorted(factors, key=lambda candidate: abs(candidate - partial_rotary_factor))


def why_not_rope_head_dim(qk_rope_head_dim: int) -> Refusal | None:
    if qk_rope_head_dim % 2 == 0:
        return None
    return Refusal("odd, but MLA rotates all of it in pairs", "an even number")


def why_not_dense_layers(first_k_dense_replace: int, num_hidden_layers: int) -> Refusal | None:
    if first_k_dense_replace <= num_hidden_layers:
        return None
    return Refusal(
        "first_k_dense_replace is more than num_hidden_layers",
        "at most as many dense layers as layers",
    )


def why_not_pipeline_stages(pp: Sequence[int], num_hidden_layers: int) -> Refusal | None:
    bad = [stages for stages in pp if stages > num_hidden_layers]
    if not bad:
        return None
    return Refusal(
        f"pp {join(bad)} is more than num_hidden_layers", "at least one layer in each stage"
    )


def why_not_pad_token(pad_token_id: int, vocab_size: int) -> Refusal | None:
    return _why_not_token("pad_token_id", pad_token_id, vocab_size)


def why_not_eos_token(eos_token_id: int, vocab_size: int) -> Refusal | None:
    return _why_not_token("eos_token_id", eos_token_id, vocab_size)


def _why_not_token(key: str, token: int, vocab_size: int) -> Refusal | None:
    if token < vocab_size:
        return None
    return Refusal(f"{key} is outside the vocabulary", f"{key} below vocab_size")


def why_not_drafting(num_draft_tokens: int, num_nextn_predict_layers: int) -> Refusal | None:
    if num_draft_tokens == 0 or num_nextn_predict_layers > 0:
        return None
    return Refusal(
        "drafts need an MTP layer, and num_nextn_predict_layers is 0",
        "num_draft_tokens 0, or num_nextn_predict_layers 1",
    )


def no_drafts(num_draft_tokens: int, num_nextn_predict_layers: int) -> list[int]:
    return [0]


def why_not_draft_tree(topk: int) -> Refusal | None:
    if topk == 1:
        return None
    return Refusal(
        "a draft with branches is a tree, and the package cannot verify a tree",
        "1: a single chain of tokens, which is all that a lightning state can follow",
    )


def why_not_extra_buffer(extra_buffer: str, prefix_cache: bool) -> Refusal | None:
    if extra_buffer == "none" or prefix_cache:
        return None
    return Refusal(
        "the extra buffer serves the prefix cache, and prefix_cache is false",
        "extra_buffer none, or prefix_cache true",
    )


def why_not_served_tp(tp_size: int, tp: Sequence[int], targets: Sequence[str]) -> Refusal | None:
    return _why_not_declared("tp_size", tp_size, "parallel.tp", tp, targets)


def why_not_served_pp(pp_size: int, pp: Sequence[int], targets: Sequence[str]) -> Refusal | None:
    return _why_not_declared("pp_size", pp_size, "parallel.pp", pp, targets)


def _why_not_declared(
    key: str, size: int, list_key: str, sizes: Sequence[int], targets: Sequence[str]
) -> Refusal | None:
    if size in sizes or "sglang" not in targets:
        return None
    return Refusal(f"{key} is not among the sizes of {list_key}", f"one of {list_key}")


def declared_tp(tp_size: int, tp: Sequence[int], targets: Sequence[str]) -> list[int]:
    return sorted(tp, key=lambda declared: abs(declared - tp_size))


def declared_pp(pp_size: int, pp: Sequence[int], targets: Sequence[str]) -> list[int]:
    return sorted(pp, key=lambda declared: abs(declared - pp_size))


def why_not_engine_kv_dtype(
    targets: Sequence[str], kv_dtype: str, torch_dtype: str
) -> Refusal | None:
    if "sglang" not in targets or kv_dtype in (torch_dtype, "bfloat16"):
        return None
    return Refusal(
        "SGLang keeps no such cache beside these weights",
        "kv_dtype bfloat16 or that of the weights with the sglang target",
    )


def why_not_plain_format(checkpoint_formats: Sequence[str]) -> Refusal | None:
    if set(PLAIN_FORMATS) & set(checkpoint_formats):
        return None
    return Refusal(
        "no format without scales, but norms and embeddings are never stored in fp8",
        f"{' or '.join(PLAIN_FORMATS)} among them",
    )


def with_plain_format(checkpoint_formats: Sequence[str]) -> list[list[str]]:
    return [[name, *checkpoint_formats] for name in PLAIN_FORMATS]


def why_not_target(targets: Sequence[str], architectures: Sequence[str]) -> Refusal | None:
    """The plugin stands in for one class of the engine; the engine serves others itself."""
    if "sglang" not in targets or not set(architectures) - set(SGLANG_ARCHITECTURES):
        return None
    return Refusal(
        "the sglang target does not serve this architecture",
        f"{' or '.join(SGLANG_ARCHITECTURES)} with it",
    )


SGLANG_ARCHITECTURES = ("BailingMoeV2_5ForCausalLM",)
PLAIN_FORMATS = ("bfloat16", "float32")
FORMATS = "quantization.checkpoint_formats"
HEADS = "model.num_attention_heads"
LAYERS = "model.num_hidden_layers"
VOCAB = "model.vocab_size"
TP = "parallel.tp"
PP = "parallel.pp"
TARGETS = "targets"
NORM_GROUPS = "attention.lightning.group_norm_size"
HEAD_DIM = "attention.lightning.head_dim"
ROTARY = "attention.lightning.partial_rotary_factor"
DRAFTS = "cache.speculative.num_draft_tokens"

# Another head_dim is another model; the factor is what was mistyped.
ROTARY_CANDIDATES = {ROTARY: even_rotary_factors, HEAD_DIM: lambda *_: ()}
SERVED_TP = {"sglang.tp_size": declared_tp, TP: lambda *_: (), TARGETS: lambda *_: ()}
SERVED_PP = {"sglang.pp_size": declared_pp, PP: lambda *_: (), TARGETS: lambda *_: ()}

MODEL_RULES = (
    Rule(("model.name",), why_not_name, {"model.name": nearest_name}),
    Rule((HEADS, TP), why_not_heads_per_tp),
    Rule((NORM_GROUPS, TP), why_not_norm_groups_per_tp),
    Rule((HEADS, NORM_GROUPS), why_not_heads_per_norm_group),
    Rule(("mlp.intermediate_size", TP), why_not_dense_width_per_tp),
    Rule((ROTARY, HEAD_DIM), why_not_rotary_width, ROTARY_CANDIDATES),
    Rule(("attention.mla.qk_rope_head_dim",), why_not_rope_head_dim),
    Rule(("mlp.first_k_dense_replace", LAYERS), why_not_dense_layers),
    Rule((PP, LAYERS), why_not_pipeline_stages),
    Rule(("model.pad_token_id", VOCAB), why_not_pad_token),
    Rule(("model.eos_token_id", VOCAB), why_not_eos_token),
    Rule((DRAFTS, "mtp.num_nextn_predict_layers"), why_not_drafting, {DRAFTS: no_drafts}),
    Rule(("cache.speculative.topk",), why_not_draft_tree),
    Rule(("cache.extra_buffer", "cache.prefix_cache"), why_not_extra_buffer),
    Rule((TARGETS, "model.architectures"), why_not_target),
    Rule((TARGETS, "cache.kv_dtype", "model.torch_dtype"), why_not_engine_kv_dtype),
    Rule(("sglang.tp_size", TP, TARGETS), why_not_served_tp, SERVED_TP, False),
    Rule(("sglang.pp_size", PP, TARGETS), why_not_served_pp, SERVED_PP, False),
    Rule((FORMATS,), why_not_plain_format, {FORMATS: with_plain_format}),
)
