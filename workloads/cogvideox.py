"""CogVideoX-2b through diffusers, its attention replaced by each implementation: what a swap brings a whole model.

``what: step`` is one call of the transformer, ``denoise`` the loop of ``steps`` such calls with the scheduler between
them, ``end_to_end`` the loop and the VAE's decoder after it. ``guidance`` (classifier-free, scale 6) puts the video
with the prompt and without it into one batch of 2. The loop is that of diffusers' ``CogVideoXPipeline.__call__``, from
the prompt's embeddings to the decoded video on the GPU; the text encoder is not run. Its ranges are ``denoising`` with
``transformer`` and ``scheduler`` inside, and ``decode``. Around each call of attention stands ``attention``, unless
``compile`` is on: a range would break the graph.

49 frames of 480 x 720 are 13 x 30 x 45 = 17550 tokens of the video and 226 of the prompt, over which each of the 30
layers attends with 30 heads of 64. 50 steps are thus 1500 calls of attention, both halves of the guidance in each.

``weights: random`` is the architecture with random weights, which cost the same time; the video is noise. Otherwise it
names a folder that has ``transformer``, ``scheduler`` and ``vae`` as Hugging Face stores them; nothing is downloaded.
The prompt's embeddings are random in both. What depends on the values says nothing of a trained model: the errors, and
of SpargeAttn what it skips beyond the half of the keys that its defaults leave out.

Copies between layouts are part of what is compared. Each layer makes three: q and k into their norms, and attention's
output back into the order of the tokens, but for ``sdpa_efficient``, which writes it so. torch's SDPA, flash-attn,
xformers and SageAttention add none, since they take any view whose last axis is contiguous; SpargeAttn copies v.
SageAttention 1 subtracts K's mean from K in place, 2 into a tensor of its own, and for sm_90 it pads v.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from profpipe import load
from profpipe.errors import did_you_mean
from profpipe.ranges import annotate

if TYPE_CHECKING:
    import _cogvideox_model
    import _cogvideox_room
    import _errors
    import _implementations
    import _obstacles
    import _reference
    import _setting
    from _cogvideox_model import Phase, Setting
else:
    _cogvideox_model = load.module(Path(__file__).with_name("_cogvideox_model.py"))
    _cogvideox_room = load.module(Path(__file__).with_name("_cogvideox_room.py"))
    _errors = load.module(Path(__file__).with_name("_errors.py"))
    _implementations = load.module(Path(__file__).with_name("_implementations.py"))
    _obstacles = load.module(Path(__file__).with_name("_obstacles.py"))
    _reference = load.module(Path(__file__).with_name("_reference.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))
    Phase, Setting = _cogvideox_model.Phase, _cogvideox_model.Setting

PARAMS = {
    "impl": "sdpa_flash",
    "size": "2b",
    "weights": "random",  # or a folder
    "frames": 49,
    "height": 480,
    "width": 720,
    "what": "step",
    "steps": 50,
    "guidance": True,
    "vae_tiling": True,
    "dtype": "fp16",
    "compile": False,
    "seed": 0,
}

WHAT = ("step", "denoise", "end_to_end")

#: Of CogVideoXPipeline and of the scripts that published times for this model.
GUIDANCE_SCALE = 6.0


# --- what profpipe asks of a workload --------------------------------------------------------------------------------


def build(params: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Makes the model on the GPU (else the CPU) and returns what one iteration runs.

    That returns the noise predicted (``step``), the latents ``(1, frames, channels, height, width)`` (``denoise``) or
    the video ``(1, 3, frames, height, width)``. Raises ValueError for parameters that make no sense on any machine.
    """
    s = _case(params)
    model = _Model(s, _cogvideox_model.transformer(s), annotate)
    if s.what == "step":
        return model.step
    if s.what == "denoise":
        return model.denoise
    vae = _cogvideox_model.vae(s)

    def end_to_end() -> Tensor:
        latents = model.denoise()
        with annotate("decode"), torch.no_grad():
            return vae.decode(latents.permute(0, 2, 1, 3, 4) / vae.config.scaling_factor).sample

    return end_to_end


def flops(params: Mapping[str, Any]) -> float | dict[str, float]:
    """Floating-point operations of the transformer's matrix products, all steps together; the VAE's are not counted.

    By data type where attention computes in others than the model's.
    """
    s = _case(params)
    total, attention = _cogvideox_model.flops_per_step(s) * _steps(s), _flops_of_attention(s)
    by_type = _implementations.by_type(s.attention, attention)
    if not isinstance(by_type, dict):
        return total
    return {**by_type, s.dtype: by_type.get(s.dtype, 0.0) + total - attention}


def phase_work(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """FLOPs and least bytes of the calls of attention in one iteration: q, k, v read and the output written once."""
    s = _case(params)
    if s.compile:
        return {}
    calls, rows = s.model.layers * _steps(s), s.batch * s.tokens * s.model.width
    path = "transformer > attention" if s.what == "step" else "denoising > transformer > attention"
    flops = _implementations.by_type(s.attention, _flops_of_attention(s))
    return {path: {"flops": flops, "bytes_moved": 4.0 * calls * rows * s.torch_dtype.itemsize}}


def _flops_of_attention(s: Setting) -> float:
    return 4.0 * s.model.layers * _steps(s) * s.batch * s.tokens**2 * s.model.width


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """The transformer's parameters, the tokens that attention sees, and how often it is called."""
    s = _case(params)
    return {
        "parameters": (float(_cogvideox_model.parameter_count(s)), "1"),
        "tokens": (float(s.tokens), "1"),
        "attention_calls": (float(s.model.layers * _steps(s)), "1"),
    }


def expects(params: Mapping[str, Any]) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them; empty: none is expected."""
    return _implementations.expected_family(_case(params).attention)


def available(params: Mapping[str, Any]) -> str | None:
    """Why this case cannot run here and what to do about it, or None."""
    s = _case(params)
    row = _implementations.IMPLEMENTATIONS[s.impl]
    wrong = _obstacles.other_length(s.attention, row, "frames, height or width")
    return wrong or _cogvideox_room.lacking(s)


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """How far the calls of attention in the first step are from attention in fp32, and what the step comes to.

    The five measures of ``_errors``, over all layers, each on the q, k and v that the layer has: of some query rows,
    spread evenly, against all keys. ``prediction_rel_l1`` and ``prediction_cosine`` are of the noise predicted, against
    the same weights and inputs computed in fp32; they hold the rounding of the whole model too. With random weights a
    prediction hardly depends on attention, so a small difference in it says little.
    """
    s = replace(_case(params), what="step", steps=1, vae_tiling=False)
    attention, prediction = _errors.Difference(), _errors.Difference()
    prediction.add(_Model(s, _cogvideox_model.transformer(s), nullcontext).step().cpu(), _in_fp32(_same_for_all(s)))
    eager = replace(s, compile=False)
    compared = _compared(eager.attention, _cogvideox_model.attend(eager, nullcontext), attention)
    _Model(eager, _cogvideox_model.transformer(eager), nullcontext, compared).step()
    whole = prediction.measures()
    return {
        **attention.measures(),
        "prediction_rel_l1": whole["error_rel_l1"],
        "prediction_cosine": whole["cosine"],
    }


# --- parameters ------------------------------------------------------------------------------------------------------


def _case(params: Mapping[str, Any]) -> Setting:
    """The parameters with defaults; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in PARAMS:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, PARAMS)}")
    values: dict[str, Any] = {**PARAMS, **params}
    _setting.known("impl", values["impl"], _implementations.IMPLEMENTATIONS)
    _setting.known("size", values["size"], _cogvideox_model.SIZES)
    _setting.known("what", values["what"], WHAT)
    _setting.known("dtype", values["dtype"], _setting.DTYPES)
    for name in ("guidance", "vae_tiling", "compile"):
        if type(values[name]) is not bool:
            raise ValueError(f"{name} must be true or false, not {values[name]!r}")
    for name in ("frames", "height", "width", "steps"):
        if type(values[name]) is not int or values[name] < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {values[name]!r}")
    if values["frames"] % _cogvideox_model.FRAMES != 1:
        raise ValueError(f"frames must be a multiple of 4 and one more, as 49 is, not {values['frames']}")
    for name in ("height", "width"):
        if values[name] % (_cogvideox_model.PIXELS * _cogvideox_model.PATCH):
            raise ValueError(f"{name} must be a multiple of 16, not {values[name]}")
    if values["steps"] > 1000:
        raise ValueError(f"steps must be at most 1000, the steps of the training, not {values['steps']}")
    return Setting(**values | {"weights": str(values["weights"])})


def _steps(s: Setting) -> int:
    """Calls of the transformer in one iteration."""
    return 1 if s.what == "step" else s.steps


# --- one iteration ---------------------------------------------------------------------------------------------------


class _Model:
    """The transformer with its attention swapped, and what the loop feeds it: all of it follows from ``seed``."""

    def __init__(self, s: Setting, transformer: Any, phase: Phase, attention: _setting.Forward | None = None) -> None:
        attend = attention or _cogvideox_model.attend(s, phase)
        transformer.set_attn_processor(_cogvideox_model.SwappedAttention(attend))
        self._setting, self._phase = s, phase
        self._transformer = _compiled(transformer) if s.compile else transformer
        self._scheduler = _cogvideox_model.scheduler(s)
        # Drawn on the CPU, so that they are the same numbers on every machine.
        generator = torch.Generator().manual_seed(s.seed)
        prompts = torch.randn(s.batch, s.model.text, s.model.text_width, generator=generator)
        noise = torch.randn(s.latent, generator=generator) * self._scheduler.init_noise_sigma
        self._prompts, self._noise = (made.to(_setting.device(), s.torch_dtype) for made in (prompts, noise))

    @torch.no_grad()
    def step(self) -> Tensor:
        """The noise that the transformer predicts for the first step: ``(batch, frames, channels, height, width)``."""
        return self._predict(self._noise, self._scheduler.timesteps[0])

    @torch.no_grad()
    def denoise(self) -> Tensor:
        """The latents after all steps."""
        latents = self._noise
        with self._phase("denoising"):
            for time in self._scheduler.timesteps:
                predicted = self._predict(latents, time)
                with self._phase("scheduler"):
                    latents = self._scheduled(predicted, time, latents)
        return latents

    def _predict(self, latents: Tensor, time: Tensor) -> Tensor:
        with self._phase("transformer"):
            return self._transformer(
                hidden_states=self._scheduler.scale_model_input(torch.cat([latents] * self._setting.batch), time),
                encoder_hidden_states=self._prompts,
                timestep=time.expand(self._setting.batch),
                return_dict=False,
            )[0]

    def _scheduled(self, predicted: Tensor, time: Tensor, latents: Tensor) -> Tensor:
        noise = predicted.float()
        if self._setting.guidance:
            without, with_prompt = noise.chunk(2)
            noise = without + GUIDANCE_SCALE * (with_prompt - without)
        return self._scheduler.step(noise, time, latents, return_dict=False)[0].to(latents.dtype)


def _compiled(transformer: Any) -> Any:
    """The transformer compiled for its shape alone, in as many graphs as its attention needs.

    What earlier cases compiled is forgotten first: it would count against torch's limit of recompilations.
    """
    torch.compiler.reset()
    return torch.compile(transformer, dynamic=False)


# --- the reference ---------------------------------------------------------------------------------------------------

#: Query rows of each layer that are compared with the reference.
_CHECKED_ROWS = 1024


def _compared(setting: _setting.Setting, attend: _setting.Forward, difference: Any) -> _setting.Forward:
    """``attend``, with its difference from the reference taken in."""
    rows = slice(None, None, max(1, setting.seqlen // _CHECKED_ROWS))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Before the call, for an implementation may write into its inputs (SageAttention 1 does).
        with _reference.full_fp32_precision():
            expected = _exact(setting, q[:, :, rows], k, v)
        out = attend(q, k, v)
        difference.add(out[:, rows], expected)
        return out

    return attention


def _exact(setting: _setting.Setting, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention in fp32 with the layouts of ``attend``, in blocks: all scores at once would fit no GPU."""
    items = (tuple(tensor[item].transpose(0, 1) for tensor in (q, k, v)) for item in range(setting.batch))
    return torch.stack([torch.cat([some for _, _, some in _reference.reference(setting, *item)]) for item in items])


def _same_for_all(s: Setting) -> Setting:
    """The same case for every implementation, whose reference is one."""
    return replace(s, impl="sdpa_math", compile=False)


@functools.lru_cache(maxsize=1)
def _in_fp32(s: Setting) -> Tensor:
    """What the weights and inputs of ``s`` predict when computed in fp32, on the CPU; kept for the next case."""
    exact = replace(s, dtype="fp32")
    weights = torch.nn.Module.float(_cogvideox_model.transformer(s))
    model = _Model(exact, weights, nullcontext, functools.partial(_exact, exact.attention))
    # The inputs as the case has them, rounded.
    model._prompts, model._noise = (tensor.to(s.torch_dtype).float() for tensor in (model._prompts, model._noise))
    with _reference.full_fp32_precision():
        return model.step().cpu()
