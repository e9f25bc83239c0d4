"""CogVideoX through diffusers: its sizes and weights, and a processor that swaps its attention.

``2b`` is THUDM/CogVideoX-2b as diffusers' ``scripts/convert_cogvideox_to_diffusers.py`` converts it, with position
embeddings added to the tokens. Functions import diffusers themselves, so that the workload can report a missing one.
"""

from __future__ import annotations

import functools
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from profpipe.errors import words
from profpipe.workload_lib import attention_config, implementations, requirements
from profpipe.workload_lib.attention_config import Phase

#: A latent of the VAE is 8 x 8 pixels, and 4 frames after the first; a token of the transformer is 2 x 2 latents.
PIXELS, FRAMES, PATCH = 8, 4, 2

#: Names of ``torch.nn.attention.SDPBackend``.
_BACKENDS = {
    "sdpa_math": "MATH",
    "sdpa_flash": "FLASH_ATTENTION",
    "sdpa_efficient": "EFFICIENT_ATTENTION",
    "sdpa_cudnn": "CUDNN_ATTENTION",
}

#: Values of the conversion script for 2b; ``snr_shift_scale`` is 1.0 for 5b.
_SCHEDULER = {
    "snr_shift_scale": 3.0,
    "beta_start": 0.00085,
    "beta_end": 0.012,
    "beta_schedule": "scaled_linear",
    "clip_sample": False,
    "num_train_timesteps": 1000,
    "prediction_type": "v_prediction",
    "rescale_betas_zero_snr": True,
    "set_alpha_to_one": True,
    "timestep_spacing": "trailing",
}

#: A small VAE for the CPU.
_TINY_VAE = {"block_out_channels": (8,) * 4, "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 2}


@dataclass(frozen=True)
class Size:
    """The dimensions of a transformer; ``text`` is the number of prompt tokens, ``text_width`` their width."""

    layers: int
    heads: int
    head_dim: int
    channels: int
    text: int
    text_width: int
    time_width: int
    vae: Mapping[str, Any] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return self.heads * self.head_dim


SIZES = {
    "2b": Size(layers=30, heads=30, head_dim=64, channels=16, text=226, text_width=4096, time_width=512),
    "tiny": Size(layers=2, heads=2, head_dim=64, channels=4, text=16, text_width=32, time_width=32, vae=_TINY_VAE),
}


@dataclass(frozen=True, kw_only=True)
class CogVideoXConfig:
    """The checked parameters of one case."""

    impl: str
    size: str
    weights: str
    frames: int
    height: int
    width: int
    what: str
    steps: int
    guidance: bool
    vae_tiling: bool
    dtype: str
    compile: bool
    seed: int

    @property
    def model(self) -> Size:
        return SIZES[self.size]

    @property
    def batch(self) -> int:
        """Videos per call of the transformer: with guidance, one with the prompt and one without."""
        return 2 if self.guidance else 1

    @property
    def latent(self) -> tuple[int, int, int, int, int]:
        """``(1, frames, channels, height, width)`` of one video."""
        frames = (self.frames - 1) // FRAMES + 1
        return 1, frames, self.model.channels, self.height // PIXELS, self.width // PIXELS

    @property
    def video_tokens(self) -> int:
        _, frames, _, height, width = self.latent
        return frames * (height // PATCH) * (width // PATCH)

    @property
    def tokens(self) -> int:
        """The sequence length of attention: tokens of the prompt and of the video."""
        return self.model.text + self.video_tokens

    @property
    def attention(self) -> attention_config.AttentionConfig:
        """The config of one call of attention."""
        return attention_config.AttentionConfig(
            impl=self.impl,
            batch=self.batch,
            seqlen=self.tokens,
            heads=self.model.heads,
            head_dim=self.model.head_dim,
            dtype=self.dtype,
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        return attention_config.DTYPES[self.dtype]


# --- the attention that is swapped in --------------------------------------------------------------------------------


class SwappedAttention:
    """diffusers' ``CogVideoXAttnProcessor2_0`` with only the call of attention replaced.

    All operations have the same order, those between layouts too: LayerNorm copies q and k from the heads-last order
    of the projections into ``(batch, heads, tokens, head_dim)``; v is a view with the strides of its projection.
    ``attend`` takes these and returns ``(batch, tokens, heads, head_dim)``.
    """

    def __init__(self, attend: attention_config.Forward) -> None:
        self._attend = attend

    # diffusers passes only arguments in the signature (Attention.forward in attention_processor.py).
    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if attention_mask is not None or image_rotary_emb is not None:
            raise ValueError("CogVideoX-2b has neither a mask nor rotary embeddings")
        tokens = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        q = attn.norm_q(attn.to_q(tokens).unflatten(-1, (attn.heads, -1)).transpose(1, 2))
        k = attn.norm_k(attn.to_k(tokens).unflatten(-1, (attn.heads, -1)).transpose(1, 2))
        v = attn.to_v(tokens).unflatten(-1, (attn.heads, -1)).transpose(1, 2)
        mixed = attn.to_out[1](attn.to_out[0](self._attend(q, k, v).flatten(2)))
        text = encoder_hidden_states.shape[1]
        return mixed[:, text:], mixed[:, :text]


def attend(config: CogVideoXConfig, phase: Phase) -> attention_config.Forward:
    """Return the implementation with the processor's layouts, by views only, in the range ``attention``.

    With torch.compile there is no range, because a range breaks the graph; SDPA's backend is set so that the compiler
    sees it; and packages are called outside the graph, which breaks the graph for all of them equally.
    """
    if config.compile and config.impl in _BACKENDS:
        return functools.partial(_traceable, getattr(SDPBackend, _BACKENDS[config.impl]))
    row = implementations.IMPLEMENTATIONS[config.impl]
    forward = row.prepare(config.attention)

    def called(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if row.heads_first:
            return forward(q, k, v).transpose(1, 2)
        return forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))

    def call_in_range(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with phase("attention"):
            return called(q, k, v)

    return torch.compiler.disable(called) if config.compile else call_in_range


def _traceable(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v).transpose(1, 2)


# --- the parts of the model ------------------------------------------------------------------------------------------


def transformer(config: CogVideoXConfig) -> Any:
    """Return ``CogVideoXTransformer3DModel`` on the device, with the attention of diffusers."""
    from diffusers import CogVideoXTransformer3DModel

    return _module(config, CogVideoXTransformer3DModel, "transformer", architecture(config))


def vae(config: CogVideoXConfig) -> Any:
    """Return ``AutoencoderKLCogVideoX``, the decoder, on the device."""
    from diffusers import AutoencoderKLCogVideoX

    model = _module(config, AutoencoderKLCogVideoX, "vae", config.model.vae)
    if config.vae_tiling:
        model.enable_tiling()
    return model


def scheduler(config: CogVideoXConfig) -> Any:
    """Return ``CogVideoXDDIMScheduler``, the scheduler of THUDM/CogVideoX-2b, with the number of steps set."""
    from diffusers import CogVideoXDDIMScheduler

    if config.weights == "random":
        made = CogVideoXDDIMScheduler(**_SCHEDULER)
    else:
        made = CogVideoXDDIMScheduler.from_pretrained(config.weights, subfolder="scheduler", local_files_only=True)
    made.set_timesteps(config.steps, device=attention_config.device())
    return made


def _module(config: CogVideoXConfig, kind: Any, part: str, arguments: Mapping[str, Any]) -> Any:
    """Load a module from the folder ``weights``, never from the network, or make one with random weights.

    Random weights are torch's initial ones for ``seed``: made in fp32 on the device, then rounded.
    """
    if config.weights == "random":
        torch.manual_seed(config.seed)
        with torch.device(attention_config.device()):
            # diffusers' `to` warns about modules to keep in fp32 even where there are none (0.42).
            model = torch.nn.Module.to(kind(**arguments), config.torch_dtype)
    else:
        options = {"subfolder": part, "torch_dtype": config.torch_dtype, "local_files_only": True}
        model = kind.from_pretrained(config.weights, **options).to(attention_config.device())
    return model.eval().requires_grad_(False)


def architecture(config: CogVideoXConfig) -> dict[str, Any]:
    """Return the arguments of the transformer, with the video's size, so that no step computes positions."""
    model, (_, _, _, height, width) = config.model, config.latent
    return {
        "num_layers": model.layers,
        "num_attention_heads": model.heads,
        "attention_head_dim": model.head_dim,
        "in_channels": model.channels,
        "out_channels": model.channels,
        "max_text_seq_length": model.text,
        "text_embed_dim": model.text_width,
        "time_embed_dim": model.time_width,
        "patch_size": PATCH,
        "sample_frames": config.frames,
        "sample_height": height,
        "sample_width": width,
        "temporal_compression_ratio": FRAMES,
    }


def parameter_count(config: CogVideoXConfig) -> int:
    """Count the elements of the transformer's parameters in a model without memory."""
    from diffusers import CogVideoXTransformer3DModel

    with torch.device("meta"):
        model = CogVideoXTransformer3DModel(**architecture(config))
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_step(config: CogVideoXConfig) -> float:
    """Return the FLOPs of the matrix products in one call of the transformer.

    2 x tokens x elements of a matrix, and 4 x batch x tokens^2 x width for attention in a layer, without a mask.
    A layer has four matrices of width^2 in attention and two of 4 x width^2 in the MLP; its two norms get scale, shift
    and gate for text and video from the time embedding, once per video.
    """
    m, patch = config.model, config.model.channels * PATCH**2
    attention = 4 * m.layers * config.tokens**2 * m.width
    tokens = 12 * m.layers * m.width**2
    text, video = m.text_width * m.width, 2 * patch * m.width
    per_video = m.time_width * (m.width + m.time_width + 2 * 6 * m.layers * m.width + 2 * m.width)
    products = config.tokens * tokens + m.text * text + config.video_tokens * video + per_video
    return float(config.batch * (2 * products + attention))


# --- what a case needs -----------------------------------------------------------------------------------------------


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
        or requirements.missing_compiler(config.compile, "compile: false")
        or missing_memory(config)
    )


def mismatch(config: CogVideoXConfig) -> str | None:
    """Return the file that the folder of weights lacks or how its transformer differs; None: it can be loaded."""
    needed = ["transformer/config.json", "scheduler/scheduler_config.json"]
    for name in needed + ["vae/config.json"] * (config.what == "end_to_end"):
        if not Path(config.weights, name).is_file():
            return f"there is no {name} in it"
    stored = json.loads(Path(config.weights, "transformer", "config.json").read_text(encoding="utf-8"))
    wanted = {key: value for key, value in architecture(config).items() if not key.startswith("sample_")}
    wanted["use_rotary_positional_embeddings"] = False
    different = [key for key, value in wanted.items() if stored.get(key, value) != value]
    return f"its transformer is not {config.size}: {different[0]} is {stored[different[0]]}" if different else None


def missing_memory(config: CogVideoXConfig) -> str | None:
    """Compare a lower bound of the memory that the case needs with that of the machine: all cases that fit are tried.

    The bound counts the weights and, for one layer, the tokens with the MLP's inner activations before and after its
    GELU; where the scores are stored, the scores and their softmax.
    """
    inside = config.batch * config.tokens * 9 * config.model.width
    scores = 2 * config.batch * config.model.heads * config.tokens**2 if config.impl in ("sdpa_math", "plain") else 0
    least = config.torch_dtype.itemsize * (parameter_count(config) + max(inside, scores))
    needs = f"{config.size} with {config.tokens} tokens and {config.impl} needs at least {{}}"
    remedy = "Use fewer frames, a smaller picture, or an implementation that keeps no scores."
    return requirements.shortage(least, attention_config.device(), needs, remedy)
