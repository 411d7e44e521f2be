"""What the generated code must compute, in float64 and one token at a time.

Shares no line and no algorithm with the generated package and knows nothing of slots, pages or
batches.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor


def _wide(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def lightning_recurrence(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor | None, log_decay: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """S = exp(log_decay_h) S + k^T v;  o = scale * q S, from S = `state` or from zero.

    q, k: [T, H, K], v: [T, H, V], state: [H, K, V], log_decay: [H] -> [T, H, V] and [H, K, V].
    """
    queries, keys, values = _wide(q), _wide(k), _wide(v)
    num_tokens, num_heads, key_dim = queries.shape
    decay = np.exp(_wide(log_decay))[:, None, None]
    carried = np.zeros((num_heads, key_dim, values.shape[-1])) if state is None else _wide(state)
    out = np.zeros((num_tokens, num_heads, values.shape[-1]))
    for token in range(num_tokens):
        carried = decay * carried + keys[token, :, :, None] * values[token, :, None, :]
        out[token] = scale * np.matmul(queries[token, :, None, :], carried)[:, 0]
    return torch.from_numpy(out), torch.from_numpy(np.array(carried))


def causal_softmax(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Each query attends to its own token and those before it; the queries are the last tokens.

    q: [T, H, K], k: [S, H, K], v: [S, H, V], S >= T -> [T, H, V].
    """
    queries, keys, values = _wide(q), _wide(k), _wide(v)
    out = np.zeros((queries.shape[0], queries.shape[1], values.shape[-1]))
    num_earlier = keys.shape[0] - queries.shape[0]
    for token in range(queries.shape[0]):
        num_seen = num_earlier + token + 1
        for head in range(queries.shape[1]):
            scores = scale * keys[:num_seen, head] @ queries[token, head]
            weights = np.exp(scores - scores.max())
            out[token, head] = weights @ values[:num_seen, head] / weights.sum()
    return torch.from_numpy(out)


def latent_attention(
    q_nope: Tensor, q_rope: Tensor, rows: Tensor, w_uk: Tensor, w_uv: Tensor, scale: float
) -> Tensor:
    """Softmax attention of one request with keys and values expanded from its latent rows.

    q_nope: [T, H, N], q_rope: [T, H, P], rows: [S, C + P], w_uk: [H, N, C], w_uv: [H, V, C]
    -> [T, H, V].
    """
    rank = w_uk.shape[-1]
    latent, k_rope = rows.double().split([rank, rows.shape[-1] - rank], dim=-1)
    keys = torch.stack(
        [torch.cat([latent @ w.double().T, k_rope], dim=-1) for w in w_uk], dim=1
    )  # [S, H, N + P]
    values = torch.stack([latent @ w.double().T for w in w_uv], dim=1)
    return causal_softmax(torch.cat([q_nope, q_rope], dim=-1), keys, values, scale)


def grouped_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Softmax attention of one request whose query heads share key heads, neighbours the same one.

    q: [T, H, K], k, v: [S, G, K], S >= T -> [T, H, K].
    """
    sharing = q.shape[1] // k.shape[1]
    owners = [head // sharing for head in range(q.shape[1])]
    return causal_softmax(q, k[:, owners], v[:, owners], scale)


def route(
    logits: list[float],
    bias: list[float],
    *,
    n_group: int,
    topk_group: int,
    num_experts_per_tok: int,
    scaling: float,
) -> tuple[list[int], list[float]]:
    """Chosen experts, best first, and their weights, for one token.

    Selection is in float32, where the package chooses too: a tie there is a tie here.
    """
    scores = np.float32(torch.tensor(logits, dtype=torch.float32).sigmoid().numpy())
    biased = scores + np.array(bias, dtype=np.float32)
    size = len(logits) // n_group
    members = [range(group * size, (group + 1) * size) for group in range(n_group)]

    def group_score(group: int) -> np.float32:
        best, second = sorted((biased[expert] for expert in members[group]), reverse=True)[:2]
        return best + second

    kept = sorted(range(n_group), key=lambda group: (-group_score(group), group))[:topk_group]
    candidates = [expert for group in kept for expert in members[group]]
    chosen = sorted(candidates, key=lambda expert: (-biased[expert], expert))[:num_experts_per_tok]
    weights = [float(scores[expert]) for expert in chosen]
    if num_experts_per_tok > 1:
        total = math.fsum(weights) + 1e-20
        weights = [weight / total for weight in weights]
    return chosen, [weight * scaling for weight in weights]


def route_softmax(
    logits: list[float], *, num_experts_per_tok: int, is_normalised: bool
) -> tuple[list[int], list[float]]:
    """Chosen experts, best first, and their weights, for one token, over all experts."""
    chosen = sorted(range(len(logits)), key=lambda expert: (-logits[expert], expert))
    chosen = chosen[:num_experts_per_tok]
    over = chosen if is_normalised and num_experts_per_tok > 1 else range(len(logits))
    total = math.fsum(math.exp(logits[expert]) for expert in over)
    return chosen, [math.exp(logits[expert]) / total for expert in chosen]


def rotated(x: Tensor, positions: list[int], theta: float, places: list[tuple[int, int]]) -> Tensor:
    """[T, H, K] with each pair (i, j) of `places` turned by position * theta^(-n/len(places)).

    n counts the pairs; dimensions in no pair stay.
    """
    out = x.double().clone()
    for token, position in enumerate(positions):
        for n, (i, j) in enumerate(places):
            turn = complex(np.exp(1j * position * theta ** (-n / len(places))))
            for head in range(x.shape[1]):
                turned = complex(x[token, head, i], x[token, head, j]) * turn
                out[token, head, i], out[token, head, j] = turned.real, turned.imag
    return out


def yarn_frequencies(
    width: int, theta: float, factor: float, original: int, fast: float, slow: float
) -> list[float]:
    """Radians per position of each pair of a head that rotates `width` dimensions.

    A pair that turns more than `fast` times over the original length keeps its frequency, one that
    turns less than `slow` times is `factor` times slower, and between them the share of the slow
    one grows linearly from pair to pair.
    """

    def pair_of(rotations: float) -> float:
        return width * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    first = max(math.floor(pair_of(fast)), 0)
    last = min(math.ceil(pair_of(slow)), width - 1)
    frequencies = []
    for pair in range(width // 2):
        plain = 1 / theta ** (2 * pair / width)
        share = min(max((pair - first) / ((last - first) or 0.001), 0.0), 1.0)
        frequencies.append((1 - share) * plain + share * plain / factor)
    return frequencies
