"""One iteration of the language model: a pass, forward and backward, or a training step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor
from torch.nn import functional

from profpipe.workload_lib import attention_config, compilation, lm_config, lm_model
from profpipe.workload_lib.lm_config import LmConfig
from profpipe.workload_lib.passes import Phase


class Model:
    """The decoder on the device, with random tokens to predict; ``seed`` sets tokens and weights."""

    def __init__(self, config: LmConfig, phase: Phase) -> None:
        device = attention_config.device()
        generator = torch.Generator(device).manual_seed(config.seed)
        with torch.device(device):
            self.layers = lm_model.decoder(config, nullcontext if config.compile else phase)
            ids = torch.randint(config.vocab, (config.batch, config.context + 1), generator=generator)
        lm_model.initialise(self.layers, generator)
        self.tokens, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()
        self._setting, self._phase = config, phase
        self._run = compilation.compiled_model(self.layers, fullgraph=True) if config.compile else self.layers

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return (logits, mean loss)."""
        is_mixed, dtype = self._setting.precision != "fp32", self._setting.dtype
        autocast = torch.autocast(attention_config.device(), dtype=dtype) if is_mixed else nullcontext()
        with self._phase("forward"), autocast:
            logits = self._run(self.tokens)
            with self._phase("loss"):
                return logits, functional.cross_entropy(logits.flatten(0, 1), self.targets)


def iteration(config: LmConfig, phase: Phase) -> Callable[[], Tensor]:
    """Return one iteration, with each pass in a ``phase``; the iteration returns the loss."""
    model = Model(config, nullcontext if config.what == "backward" else phase)

    def forward() -> Tensor:
        with torch.no_grad():
            return model.forward()[1]

    if config.what == "forward":
        return forward
    # A scale of 1024 never overflows in a new model: an overflow would skip the optimizer in a timed step.
    scaler = torch.amp.GradScaler(attention_config.device(), init_scale=1024.0, enabled=config.precision == "fp16")

    if config.what == "backward":
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

    if config.what == "forward_backward":
        return forward_backward
    optimizer = torch.optim.AdamW(model.layers.parameters(), lr=1e-4, **lm_config.ADAMW[config.adamw])

    def train_step() -> Tensor:
        loss = forward_backward()
        with phase("optimizer"):
            scaler.step(optimizer)
            scaler.update()
        return loss

    return train_step
