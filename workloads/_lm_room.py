"""Why a case of the language model cannot run here, and what to do about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from profpipe import load

if TYPE_CHECKING:
    import _compile
    import _lm_model
    import _lm_setting
    import _room
    from _lm_setting import Setting
else:
    _compile = load.module(Path(__file__).with_name("_compile.py"))
    _lm_model = load.module(Path(__file__).with_name("_lm_model.py"))
    _lm_setting = load.module(Path(__file__).with_name("_lm_setting.py"))
    _room = load.module(Path(__file__).with_name("_room.py"))


def lacking(s: Setting) -> str | None:
    """The first reason against it, or None."""
    reasons = (look(s) for look in (_no_device, _no_precision, _no_kept_graph, _no_compiler, _no_room))
    return next((reason for reason in reasons if reason), None)


def _no_device(s: Setting) -> str | None:
    if s.size == "2.7B" and _lm_setting.device() == "cpu":
        return "2.7B needs a GPU, and torch sees none. Run it where there is one, or use a smaller size here."
    return None


def _no_precision(s: Setting) -> str | None:
    if s.precision == "bf16" and _lm_setting.device() == "cuda" and torch.version.cuda is not None:
        capability = torch.cuda.get_device_capability()
        if capability < (8, 0):
            return "bf16 needs sm_80 or later; this GPU is sm_{}{}. Use precision: fp16 or fp32.".format(*capability)
    return None


def _no_kept_graph(s: Setting) -> str | None:
    """Seen with torch 2.13 on a CPU: from the first pass on the gradients were others than those of eager code."""
    if s.compile and s.what == "backward":
        return "what: backward keeps its graph, and a compiled pass writes over what that holds. Use forward_backward."
    return None


def _no_compiler(s: Setting) -> str | None:
    reason = _compile.lacking() if s.compile else None
    return f"{reason}, or use compile: false." if reason else None


def _no_room(s: Setting) -> str | None:
    remedy = f"Use a smaller size, batch or context{', or attention: sdpa' if s.attention == 'plain' else ''}."
    return _room.lacking(least_bytes(s), _lm_setting.device(), f"{s.size} needs at least {{}} for {s.what}", remedy)


def least_bytes(s: Setting) -> int:
    """Memory without which the case cannot end: a lower bound, so that no case is kept from trying that would fit.

    Weights, gradients and AdamW's two states take 4 bytes each a parameter. For the backward pass eager PyTorch keeps
    at least the inputs of every product (plain attention: its weights too) and the logits, in the case's precision;
    compiled code may compute them again.
    """
    element = s.dtype.itemsize
    weights = 4 * _lm_model.parameter_count(s)
    scores = s.score_elements * element if s.attention == "plain" else 0
    logits = s.tokens * s.vocab * element
    if s.what == "forward":
        return weights + max(0 if s.compile else 2 * scores, logits)
    a_token = (6 * s.d_model + (4 if s.modern else 2) * s.d_ff) * element
    kept = 0 if s.compile else s.layers * (s.tokens * a_token + scores) + logits
    states = 2 * weights if s.what == "train_step" else 0
    return weights + states + max(kept, weights)
