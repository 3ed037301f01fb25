"""Prompts and steps through :class:`~.hf_decoder.Decoder`, for models that compute the same that way: asked of the model itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch

from trinity_core.builtins.engines.hf_decoder import LONG, Decoder, why_not_decoded
from trinity_core.builtins.engines.hf_rows import Rows
from trinity_core.builtins.engines.hf_wave import Reply
from trinity_core.builtins.models.causal import CausalLM

log = logging.getLogger(__name__)

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 5e-2}
"""Largest difference of logits that rounding explains, relative to the largest logit, by compute dtype."""


class Fused:
    """Finds the decoder of a model and keeps it in step with the model's weights."""

    def __init__(self, on: bool) -> None:
        self.on = on
        self._asked: CausalLM | None = None
        self._decoder: Decoder | None = None
        self._most = 0
        """New tokens of any reply since the last delivery, at most."""

    @torch.no_grad()
    def decoder(self, lm: CausalLM, delivery: int, most: int, *, look: bool = True) -> Decoder | None:
        """The decoder with the weights that ``lm`` has now, or ``None`` where the module itself must compute. ``delivery``: a
        number that changes whenever weights are delivered; ``most``: new tokens of any reply, at most; ``look``: see
        :meth:`Decoder.refresh`."""
        self._most = max(self._most, most)
        if lm is not self._asked:
            self._asked = self._decoder = found = None
            why = why_not_decoded(lm) if self.on else "engine.fused is false"
            if why is None:
                decoder = Decoder(lm)
                decoder.refresh(delivery, long=most >= LONG)
                if (why := disagreement(decoder)) is None:
                    found = decoder
            if why is not None:
                log.info("engine hf computes every step through %s: %s", type(lm.module).__name__, why)
            self._asked, self._decoder = lm, found
        if self._decoder is not None:
            self._decoder.refresh(delivery, long=most >= LONG, look=look)
        return self._decoder

    @torch.no_grad()
    def ahead(self, lm: CausalLM | None, delivery: int) -> None:
        """Copy weights that were just delivered before a wave asks for them, if waves came since the delivery before."""
        most, self._most = self._most, 0
        if most and self._decoder is not None and lm is self._asked:
            self._decoder.refresh(delivery, long=most >= LONG)


class FusedBatch:
    """Rows in flight. ``decoder()`` gives the weights of the next step."""

    def __init__(self, decoder: Callable[[], Decoder], live: list[Reply]) -> None:
        self.decoder = decoder
        place: dict[bytes, int] = {}
        prompt_of_R = [place.setdefault(r.request.tokens_T.astype(np.int64).tobytes(), len(place)) for r in live]
        prompts = [np.frombuffer(prompt, np.int64) for prompt in place]
        self.rows = Rows(decoder(), prompts, prompt_of_R, max(reply.limit for reply in live))
        self.live = [live[row] for row in self.rows.order]
        prompt_of_place = torch.tensor([prompt_of_R[row] for row in self.rows.order])
        self.logits_RV = self.rows.decoder.logits(self.rows.prefill(), prompt_of_place)
        self.token_R = torch.empty(0)

    def step(self) -> None:
        """One more token of every row that runs; those that have finished leave first."""
        running = [i for i, reply in enumerate(self.live) if reply.finish is None]
        if len(running) < len(self.live):
            place = self.rows.keep(running)
            self.live, self.token_R = [self.live[i] for i in place], self.token_R[place]
        self.rows.decoder = self.decoder()
        self.logits_RV = self.rows.decoder.logits(self.rows.step(self.token_R))


def disagreement(decoder: Decoder) -> str | None:
    """``None`` if prompts and steps of a few made-up rows have the logits that the module gives for the whole sequences; else what
    differs. Everything that can go wrong is in it: shared beginnings, unequal lengths, equal prompts, rows that leave."""
    lm = decoder.lm
    size = min(lm.module.config.vocab_size, 1000)
    shared = [(7 * i + 3) % size for i in range(12)]
    prompts = [[*shared, 5 % size, 2 % size, 11 % size], [*shared, 8 % size], [9 % size, 1 % size, 4 % size, 6 % size]]
    prompt_of_R = [0, 1, 1, 2, 2]
    first, second = [13 % size, 17 % size, 21 % size, 3 % size, 18 % size], [6 % size, 12 % size, 10 % size]
    rows = Rows(decoder, [np.array(prompt, np.int64) for prompt in prompts], prompt_of_R, 3)
    prompt_of_R = [prompt_of_R[row] for row in rows.order]
    found = [rows.prefill()[prompt_of_R], rows.step(torch.tensor(first))]
    place = rows.keep([1, 3, 4])
    found.append(rows.step(torch.tensor(second)))
    sequences = [[*prompts[p], token] for p, token in zip(prompt_of_R, first)]
    for row, token in zip(place, second):
        sequences[row].append(token)
    longest = max(map(len, sequences))
    ids = torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in sequences])
    with lm.recipe():
        hidden_RLH = lm.hidden(
            ids, torch.arange(longest).expand(len(ids), -1), None
        )  # what is behind a row changes nothing in it
        ends = [(row, len(prompts[p]) - 1) for row, p in enumerate(prompt_of_R)]
        expected = [hidden_RLH[row, end + more] for more in (0, 1) for row, end in ends]
        expected += [hidden_RLH[row, ends[row][1] + 2] for row in place]
        module_CV = lm.logits(torch.stack(expected))
    gap = float((decoder.logits(torch.cat(found)) - module_CV).abs().max() / module_CV.abs().max())
    if gap <= TOLERANCE[lm.compute]:
        return None
    return f"its logits differ by {gap:.0e} of the largest, computed in fused steps"
