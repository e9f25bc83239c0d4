"""Why a case of CogVideoX cannot run here, and what to do about it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

from profpipe import load
from profpipe.errors import words

if TYPE_CHECKING:
    import _cogvideox_model
    import _compile
    import _implementations
    import _room
    import _setting
    from _cogvideox_model import Setting
else:
    _cogvideox_model = load.module(Path(__file__).with_name("_cogvideox_model.py"))
    _compile = load.module(Path(__file__).with_name("_compile.py"))
    _implementations = load.module(Path(__file__).with_name("_implementations.py"))
    _room = load.module(Path(__file__).with_name("_room.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))


def lacking(s: Setting) -> str | None:
    """The first reason against it, or None."""
    reasons = (look(s) for look in (_no_diffusers, _no_weights, _no_device, _no_attention, _no_compiler, _no_room))
    return next((reason for reason in reasons if reason), None)


def _no_diffusers(s: Setting) -> str | None:
    if importlib.util.find_spec("diffusers") is None:
        return "diffusers is not installed. Install it: pip install diffusers."
    try:
        from diffusers import AutoencoderKLCogVideoX, CogVideoXDDIMScheduler, CogVideoXTransformer3DModel  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        said = words(error).rstrip(".")
        return f"diffusers is installed and cannot be used: {said}. Install 0.31 or later: pip install -U diffusers."
    return None


def _no_weights(s: Setting) -> str | None:
    if s.weights == "random" or (wrong := _mismatch(s)) is None:
        return None
    return (
        f"weights: {s.weights} cannot be used: {wrong}. "
        "Get them with: hf download THUDM/CogVideoX-2b --local-dir FOLDER; or use weights: random."
    )


def _mismatch(s: Setting) -> str | None:
    """What a folder of weights lacks, or how its transformer differs from the size's; None: it can be loaded."""
    needed = ["transformer/config.json", "scheduler/scheduler_config.json"]
    for name in needed + ["vae/config.json"] * (s.what == "end_to_end"):
        if not Path(s.weights, name).is_file():
            return f"there is no {name} in it"
    stored = json.loads(Path(s.weights, "transformer", "config.json").read_text(encoding="utf-8"))
    wanted = {key: value for key, value in _cogvideox_model.architecture(s).items() if not key.startswith("sample_")}
    wanted["use_rotary_positional_embeddings"] = False
    different = [key for key, value in wanted.items() if stored.get(key, value) != value]
    return f"its transformer is not {s.size}: {different[0]} is {stored[different[0]]}" if different else None


def _no_device(s: Setting) -> str | None:
    if s.size != "tiny" and _setting.device() == "cpu":
        return f"{s.size} needs a GPU, and torch sees none. Run it where there is one, or use size: tiny here."
    return None


def _no_attention(s: Setting) -> str | None:
    return _implementations.unavailable(s.attention)


def _no_compiler(s: Setting) -> str | None:
    reason = _compile.lacking() if s.compile else None
    return f"{reason}, or use compile: false." if reason else None


def _no_room(s: Setting) -> str | None:
    needs = f"{s.size} with {s.tokens} tokens and {s.impl} needs at least {{}}"
    remedy = "Use fewer frames, a smaller picture, or an implementation that keeps no scores."
    return _room.lacking(_least_bytes(s), _setting.device(), needs, remedy)


def _least_bytes(s: Setting) -> int:
    """Memory without which the case cannot end: a lower bound, so that no case is kept from trying that would fit.

    The weights, and in a layer the tokens with the MLP's inner activations before and after its GELU; where the scores
    are kept, they and their softmax.
    """
    element = s.torch_dtype.itemsize
    inside = s.batch * s.tokens * 9 * s.model.width
    scores = 2 * s.batch * s.model.heads * s.tokens**2 if s.impl in ("sdpa_math", "plain") else 0
    return element * (_cogvideox_model.parameter_count(s) + max(inside, scores))
