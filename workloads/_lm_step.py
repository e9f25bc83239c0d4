"""What one iteration of the language model runs: one of its passes, forward and backward, or a whole training step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from profpipe import load

if TYPE_CHECKING:
    import _lm_model
    import _lm_setting
    from _lm_model import Phase
    from _lm_setting import Setting
else:
    _lm_model = load.module(Path(__file__).with_name("_lm_model.py"))
    _lm_setting = load.module(Path(__file__).with_name("_lm_setting.py"))


class Model:
    """The decoder on the device with tokens to predict, random and following from ``seed`` as the weights do."""

    def __init__(self, s: Setting, phase: Phase) -> None:
        device = _lm_setting.device()
        generator = torch.Generator(device).manual_seed(s.seed)
        with torch.device(device):
            self.layers = _lm_model.decoder(s, nullcontext if s.compile else phase)
            ids = torch.randint(s.vocab, (s.batch, s.context + 1), generator=generator)
        _lm_model.initialise(self.layers, generator)
        self.tokens, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
        self._setting, self._phase = s, phase
        self._run = _compiled(self.layers) if s.compile else self.layers

    def forward(self) -> tuple[Tensor, Tensor]:
        """(logits, mean loss)."""
        with self._phase("forward"), self._autocast():
            logits = self._run(self.tokens)
            with self._phase("loss"):
                return logits, functional.cross_entropy(logits.flatten(0, 1), self.targets)

    def _autocast(self) -> AbstractContextManager[object]:
        s = self._setting
        return nullcontext() if s.precision == "fp32" else torch.autocast(_lm_setting.device(), dtype=s.dtype)


def _compiled(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """The model compiled as one graph for its shape alone.

    What earlier cases compiled is forgotten first: their sizes would count against torch's limit of 8 recompilations,
    after which it runs the model uncompiled without a word, and make this one's dimensions dynamic.
    """
    torch.compiler.reset()
    return torch.compile(model, fullgraph=True, dynamic=False)


def iteration(s: Setting, phase: Phase) -> Callable[[], Tensor]:
    """What one iteration runs, its passes each in a ``phase``. Returns the loss."""
    model = Model(s, nullcontext if s.what == "backward" else phase)

    def forward() -> Tensor:
        with torch.no_grad():
            return model.forward()[1]

    if s.what == "forward":
        return forward
    # From 1024 on, which overflows in no step of a fresh model: an overflow skips the optimizer, a step that is timed.
    scaler = torch.amp.GradScaler(_lm_setting.device(), init_scale=1024.0, enabled=s.precision == "fp16")

    if s.what == "backward":
        graph = model.forward()[1]

        def backward() -> Tensor:
            model.layers.zero_grad(set_to_none=True)
            with phase("backward"):
                scaler.scale(graph).backward(retain_graph=True)
            return graph.detach()

        return backward

    def forward_backward() -> Tensor:
        model.layers.zero_grad(set_to_none=True)
        loss = model.forward()[1]
        with phase("backward"):
            scaler.scale(loss).backward()
        return loss.detach()

    if s.what == "forward_backward":
        return forward_backward
    optimizer = torch.optim.AdamW(model.layers.parameters(), lr=1e-4, **_lm_setting.ADAMW[s.adamw])

    def train_step() -> Tensor:
        loss = forward_backward()
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
        return loss

    return train_step
