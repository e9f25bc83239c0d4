"""Finds why a case of CogVideoX cannot run here, and the remedy."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

from profpipe.errors import words
from profpipe.workload_lib import attention_config, cogvideox_model, compilation, free_memory, implementations
from profpipe.workload_lib.cogvideox_model import CogVideoXConfig


def missing_requirement(config: CogVideoXConfig) -> str | None:
    """Return the first reason, or None."""
    if importlib.util.find_spec("diffusers") is None:
        return "diffusers is not installed. Install it: pip install diffusers."
    try:
        from diffusers import AutoencoderKLCogVideoX, CogVideoXDDIMScheduler, CogVideoXTransformer3DModel  # noqa: F401
    except (ImportError, OSError, RuntimeError) as error:
        reason = words(error).rstrip(".")
        return f"diffusers is installed and cannot be used: {reason}. Install 0.31 or later: pip install -U diffusers."
    if config.weights != "random" and (wrong := mismatch(config)):
        return (
            f"weights: {config.weights} cannot be used: {wrong}. "
            "Get them with: hf download THUDM/CogVideoX-2b --local-dir FOLDER; or use weights: random."
        )
    if config.size != "tiny" and attention_config.device() == "cpu":
        return f"{config.size} needs a GPU, and torch sees none. Run it where there is one, or use size: tiny here."
    return (
        implementations.unavailable_reason(config.attention)
        or compilation.missing_compiler(config.compile, "compile: false")
        or missing_memory(config)
    )


def mismatch(config: CogVideoXConfig) -> str | None:
    """Return the file that the folder of weights lacks or how its transformer differs; None: it can be loaded."""
    needed = ["transformer/config.json", "scheduler/scheduler_config.json"]
    for name in needed + ["vae/config.json"] * (config.what == "end_to_end"):
        if not Path(config.weights, name).is_file():
            return f"there is no {name} in it"
    stored = json.loads(Path(config.weights, "transformer", "config.json").read_text(encoding="utf-8"))
    wanted = {
        key: value for key, value in cogvideox_model.architecture(config).items() if not key.startswith("sample_")
    }
    wanted["use_rotary_positional_embeddings"] = False
    different = [key for key, value in wanted.items() if stored.get(key, value) != value]
    return f"its transformer is not {config.size}: {different[0]} is {stored[different[0]]}" if different else None


def missing_memory(config: CogVideoXConfig) -> str | None:
    """Compare a lower bound of the memory that the case needs with that of the machine: every case that fits is tried.

    The bound counts the weights and, for one layer, the tokens with the MLP's inner activations before and after its
    GELU; where the scores are stored, the scores and their softmax.
    """
    inside = config.batch * config.tokens * 9 * config.model.width
    scores = 2 * config.batch * config.model.heads * config.tokens**2 if config.impl in ("sdpa_math", "plain") else 0
    least = config.torch_dtype.itemsize * (cogvideox_model.parameter_count(config) + max(inside, scores))
    needs = f"{config.size} with {config.tokens} tokens and {config.impl} needs at least {{}}"
    remedy = "Use fewer frames, a smaller picture, or an implementation that keeps no scores."
    return free_memory.shortage(least, attention_config.device(), needs, remedy)
