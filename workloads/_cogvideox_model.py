"""CogVideoX through diffusers: its sizes, its weights, and the place where its attention is swapped.

The numbers of ``2b`` are those of THUDM/CogVideoX-2b, as diffusers' ``scripts/convert_cogvideox_to_diffusers.py`` makes
it: the defaults of ``CogVideoXTransformer3DModel`` and ``AutoencoderKLCogVideoX``, with position embeddings added to
the tokens. Only the 5b models rotate queries and keys (``use_rotary_positional_embeddings``).

diffusers is imported by the functions that need it, so that the workload can say where it is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from profpipe import load

if TYPE_CHECKING:
    import _implementations
    import _setting
else:
    _implementations = load.module(Path(__file__).with_name("_implementations.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))

#: The VAE makes one latent of 8 x 8 pixels, and of 4 frames after the first; the transformer a token of 2 x 2 latents.
PIXELS, FRAMES, PATCH = 8, 4, 2

#: Opens a range around a block: ``annotate``, or ``nullcontext`` for none.
Phase = Callable[[str], AbstractContextManager[object]]

#: Names of ``torch.nn.attention.SDPBackend``.
_BACKENDS = {
    "sdpa_math": "MATH",
    "sdpa_flash": "FLASH_ATTENTION",
    "sdpa_efficient": "EFFICIENT_ATTENTION",
    "sdpa_cudnn": "CUDNN_ATTENTION",
}

#: What the conversion script gives 2b; ``snr_shift_scale`` is 1.0 for 5b.
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

#: A VAE for a CPU.
_TINY_VAE = {
    "block_out_channels": (8, 8, 8, 8),
    "layers_per_block": 1,
    "latent_channels": 4,
    "norm_num_groups": 2,
}


@dataclass(frozen=True)
class Size:
    """A transformer's numbers; ``text`` is the prompt's tokens and ``text_width`` the size of the text encoder's."""

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
class Setting:
    """The parameters of one case, checked."""

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
        """What the transformer gets at once: with guidance, the video with the prompt and without."""
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
        """What attention sees: the prompt's tokens and the video's."""
        return self.model.text + self.video_tokens

    @property
    def attention(self) -> _setting.Setting:
        """One call of attention in one layer."""
        return _setting.Setting(
            impl=self.impl,
            batch=self.batch,
            seqlen=self.tokens,
            heads=self.model.heads,
            head_dim=self.model.head_dim,
            dtype=self.dtype,
        )

    @property
    def torch_dtype(self) -> torch.dtype:
        return _setting.DTYPES[self.dtype]


# --- the attention that is swapped in --------------------------------------------------------------------------------


class SwappedAttention:
    """diffusers' ``CogVideoXAttnProcessor2_0`` with the call of attention replaced, and nothing else.

    All operations are the same and in the same order, those between layouts too: LayerNorm copies q and k from the
    heads-last order of the projections into ``(batch, heads, tokens, head_dim)``, v stays a view with the strides of
    its projection. ``attend`` takes these and returns ``(batch, tokens, heads, head_dim)``.
    """

    def __init__(self, attend: _setting.Forward) -> None:
        self._attend = attend

    # diffusers passes on only arguments that the signature names (Attention.forward in attention_processor.py).
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


def attend(s: Setting, phase: Phase) -> _setting.Forward:
    """The implementation behind the processor's layouts, by views alone, in the range ``attention``.

    For torch.compile there is no range, for it would break the graph; SDPA's backend is chosen so that the compiler
    sees the choice; and packages are called from outside the graph, which breaks it there for each of them alike.
    """
    if s.compile and s.impl in _BACKENDS:
        return functools.partial(_traceable, getattr(SDPBackend, _BACKENDS[s.impl]))
    row = _implementations.IMPLEMENTATIONS[s.impl]
    forward = row.prepare(s.attention)

    def called(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if row.heads_first:
            return forward(q, k, v).transpose(1, 2)
        return forward(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))

    def in_range(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with phase("attention"):
            return called(q, k, v)

    return torch.compiler.disable(called) if s.compile else in_range


def _traceable(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(backend):
        return scaled_dot_product_attention(q, k, v).transpose(1, 2)


# --- the parts of the model ------------------------------------------------------------------------------------------


def transformer(s: Setting) -> Any:
    """``CogVideoXTransformer3DModel`` on the device, with diffusers' own attention."""
    from diffusers import CogVideoXTransformer3DModel

    if s.weights == "random":
        model = _random(s, lambda: CogVideoXTransformer3DModel(**architecture(s)))
    else:
        model = _stored(s, CogVideoXTransformer3DModel, "transformer")
    return model.eval().requires_grad_(False)


def vae(s: Setting) -> Any:
    """``AutoencoderKLCogVideoX`` on the device, which decodes."""
    from diffusers import AutoencoderKLCogVideoX

    if s.weights == "random":
        model = _random(s, lambda: AutoencoderKLCogVideoX(**s.model.vae))
    else:
        model = _stored(s, AutoencoderKLCogVideoX, "vae")
    if s.vae_tiling:
        model.enable_tiling()
    return model.eval().requires_grad_(False)


def scheduler(s: Setting) -> Any:
    """``CogVideoXDDIMScheduler``, the one that THUDM/CogVideoX-2b names, set to the number of steps."""
    from diffusers import CogVideoXDDIMScheduler

    if s.weights == "random":
        made = CogVideoXDDIMScheduler(**_SCHEDULER)
    else:
        made = CogVideoXDDIMScheduler.from_pretrained(s.weights, subfolder="scheduler", local_files_only=True)
    made.set_timesteps(s.steps, device=_setting.device())
    return made


def _random(s: Setting, make: Callable[[], Any]) -> Any:
    """A module with torch's initial weights, which follow from ``seed``: made in fp32 on the device, then rounded."""
    torch.manual_seed(s.seed)
    with torch.device(_setting.device()):
        # diffusers' own `to` warns of modules to be kept in fp32 even where there are none (0.42).
        return torch.nn.Module.to(make(), s.torch_dtype)


def _stored(s: Setting, kind: Any, part: str) -> Any:
    """A module from the folder ``weights``, never from the network."""
    made = kind.from_pretrained(s.weights, subfolder=part, torch_dtype=s.torch_dtype, local_files_only=True)
    return made.to(_setting.device())


def architecture(s: Setting) -> dict[str, Any]:
    """Arguments of ``CogVideoXTransformer3DModel``; the video's size is its own, so that no step computes positions."""
    model, (_, _, _, height, width) = s.model, s.latent
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
        "sample_frames": s.frames,
        "sample_height": height,
        "sample_width": width,
        "temporal_compression_ratio": FRAMES,
    }


def parameter_count(s: Setting) -> int:
    """Elements of the transformer's parameters, counted in a model without memory."""
    from diffusers import CogVideoXTransformer3DModel

    with torch.device("meta"):
        model = CogVideoXTransformer3DModel(**architecture(s))
    return sum(parameter.numel() for parameter in model.parameters())


def flops_per_step(s: Setting) -> float:
    """Floating-point operations of the matrix products in one call of the transformer.

    2 x tokens x elements of each matrix, and 4 x batch x tokens^2 x width for attention in each layer, which has no
    mask. A layer has four matrices of width^2 in attention and two of 4 x width^2 in the MLP; its two norms get scale,
    shift and gate for text and video from the time embedding, once a video.
    """
    m, patch = s.model, s.model.channels * PATCH**2
    attention = 4 * m.layers * s.tokens**2 * m.width
    tokens = 12 * m.layers * m.width**2
    text, video = m.text_width * m.width, 2 * patch * m.width
    per_video = m.time_width * (m.width + m.time_width + 2 * 6 * m.layers * m.width + 2 * m.width)
    products = s.tokens * tokens + m.text * text + s.video_tokens * video + per_video
    return float(s.batch * (2 * products + attention))
