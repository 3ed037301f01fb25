"""From hidden states to numbers per action token, a chunk of the head at a time.

A chunk's logits [C, V] live only while it is computed: with a gradient each chunk is recomputed in backward, so no
array of all tokens by the whole vocabulary ever exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from trinity_core.builtins.models.causal import CausalLM
from trinity_core.errors import RunError

CHUNK = 512
"""Action tokens whose logits exist at once (100 MB of float32 at a vocabulary of 49,152)."""
TILE = 8
"""Rows of hidden states are filled up to a multiple of this where products are float32."""
Vocabulary = Mapping[str, Callable[..., Mapping[str, Tensor]]]


def head_outputs(
    model: CausalLM,
    hidden_NH: Tensor,
    token_N: Tensor,
    temperature_N: Tensor,
    outputs: frozenset[str],
    vocabulary: Vocabulary | None = None,
    extras: Mapping[str, Tensor] | None = None,
    *,
    teacher: CausalLM | None = None,
    teacher_NH: Tensor | None = None,
    chunk: int = CHUNK,
) -> dict[str, Tensor]:
    """``logp``, ``entropy``, ``topk:K`` and the arrays of vocabulary functions, over action tokens.

    logp is log softmax(logits / T) at the token, in float32 (float64 for float64). ``entropy`` is that of the same
    distribution, ``entropy_value`` the same without gradient; ``topk:K`` gives ``topk_ids`` and ``topk_logp`` [N, K], falling.
    ``teacher`` and its last hidden states ``teacher_NH``: vocabulary functions find its logits of their chunk, divided by T, in
    ``aux["teacher_logits_CV"]``. Raises :class:`RunError` for an output this backend does not have.
    """
    top = [int(name.removeprefix("topk:")) for name in outputs if name.startswith("topk:")]
    unknown = {
        name
        for name in outputs
        if name not in ("logp", "entropy", "entropy_value")
        and not name.startswith("topk:")
        and name.removeprefix("vocab:") not in (vocabulary or {})
    }
    if unknown:
        raise RunError(
            f"backend local cannot compute {', '.join(sorted(unknown))}. Of a language model it has logp, entropy, topk:K and vocabulary functions; value is the critic's"
        )
    wanted = {name: f for name, f in (vocabulary or {}).items() if f"vocab:{name}" in outputs}
    entropy = "entropy" in outputs

    def compute(
        hidden_CH: Tensor,
        token_C: Tensor,
        temperature_C: Tensor,
        extra: Mapping[str, Tensor],
        teacher_CH: Tensor | None,
    ) -> dict[str, Tensor]:
        logits_CV = model.logits(whole_tiles(hidden_CH, model.compute))[: len(token_C)]
        logits_CV = logits_CV / temperature_C.to(logits_CV.dtype)[:, None]
        total_C = torch.logsumexp(logits_CV, -1)
        found = {"logp": logits_CV.gather(1, token_C[:, None])[:, 0] - total_C}
        if entropy:
            found["entropy"] = total_C - (torch.softmax(logits_CV, -1) * logits_CV).sum(-1)
        if "entropy_value" in outputs:
            with torch.no_grad():
                found["entropy_value"] = total_C - (torch.softmax(logits_CV, -1) * logits_CV).sum(-1)
        for number in top:
            values_CK, found["topk_ids"] = logits_CV.topk(number, dim=-1)
            found["topk_logp"] = values_CK - total_C[:, None]
        aux = {"token_C": token_C, **extra}
        if wanted and teacher is not None and teacher_CH is not None:
            aux["teacher_logits_CV"] = _taught(teacher, teacher_CH, temperature_C, like=logits_CV)
        for function in wanted.values():
            found |= function(logits_CV, aux)
        return found

    parts = []
    recompute = torch.is_grad_enabled() and len(token_N) > chunk
    for start in range(0, max(len(token_N), 1), chunk):
        piece = slice(start, start + chunk)
        arguments = (
            hidden_NH[piece],
            token_N[piece],
            temperature_N[piece],
            {k: v[piece] for k, v in (extras or {}).items()},
            None if teacher_NH is None else teacher_NH[piece],
        )
        parts.append(checkpoint(compute, *arguments, use_reentrant=False) if recompute else compute(*arguments))
    return {name: torch.cat([part[name] for part in parts]) if len(parts) > 1 else parts[0][name] for name in parts[0]}


@torch.no_grad()
def _taught(teacher: CausalLM, hidden_CH: Tensor, temperature_C: Tensor, *, like: Tensor) -> Tensor:
    """The teacher's logits [C, V] at the call's temperature. What its head has beyond the policy's vocabulary is padding: no
    token of the tokenizer they share stands there."""
    with teacher.recipe():
        logits_CV = teacher.logits(whole_tiles(hidden_CH, teacher.compute))[: len(hidden_CH), : like.shape[-1]]
    return logits_CV.to(like.dtype) / temperature_C.to(like.dtype)[:, None]


def whole_tiles(hidden_CH: Tensor, compute: torch.dtype) -> Tensor:
    """``hidden_CH`` with rows of zeros up to a whole tile. The CPU's float32 product sums the whole vocabulary in one
    running sum for the rows of an incomplete tile, ten times the rounding: a micro-batch of three action tokens would have
    another gradient than the same tokens among many (3e-5 of its norm on a vocabulary of 49,152)."""
    missing = -len(hidden_CH) % TILE
    if compute != torch.float32 or not missing:
        return hidden_CH
    return torch.nn.functional.pad(hidden_CH, (0, 0, 0, missing))
