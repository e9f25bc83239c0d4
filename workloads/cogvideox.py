"""CogVideoX-2b through diffusers with each implementation of attention: what a swap brings to a whole model.

``what: step`` is one call of the transformer, ``denoise`` the loop of ``steps`` such calls with the scheduler between
them, ``end_to_end`` the loop and the VAE's decoder, as in diffusers' ``CogVideoXPipeline.__call__`` without the text
encoder. ``guidance`` (classifier-free, scale 6) puts the video with and without the prompt into one batch of 2. The
ranges are ``denoising`` with ``transformer`` and ``scheduler`` inside, and ``decode``; each call of attention is in
the range ``attention``, except with ``compile``, because a range breaks the graph.

49 frames of 480 x 720 are 17550 tokens of the video and 226 of the prompt; 30 layers attend over them with 30 heads of
64. ``weights: random`` takes the same time as trained weights. Otherwise ``weights`` is a folder with ``transformer``,
``scheduler`` and ``vae`` as Hugging Face stores them; nothing is downloaded. The prompt's embeddings are always random,
so errors and the share that SpargeAttn skips say nothing about a trained model.

Layout copies are part of the comparison: each layer copies q and k into their norms, and the output of attention into
the order of the tokens, except for ``sdpa_efficient``, which writes it in that order. SpargeAttn also copies v.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from profpipe.ranges import annotate
from profpipe.workload_lib import accuracy, attention_config, cogvideox_model, implementations, requirements
from profpipe.workload_lib.attention_config import Phase
from profpipe.workload_lib.cogvideox_model import CogVideoXConfig
from profpipe.workload_lib.parameters import add_defaults, check_bool, check_choice, check_positive

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

#: The scale in CogVideoXPipeline and in the scripts with published times for this model.
GUIDANCE_SCALE = 6.0


# --- the functions of a workload -------------------------------------------------------------------------------------


def build(params: Mapping[str, Any]) -> Callable[[], Tensor]:
    """Make the model on the GPU (else the CPU) and return the callable that runs one iteration.

    The callable returns the predicted noise (``step``), the latents ``(1, frames, channels, height, width)``
    (``denoise``) or the video ``(1, 3, frames, height, width)``. Raises ValueError for parameters that are invalid on
    every machine.
    """
    config = parse_params(params)
    model = _Model(config, cogvideox_model.transformer(config), annotate)
    if config.what == "step":
        return model.step
    if config.what == "denoise":
        return model.denoise
    vae = cogvideox_model.vae(config)

    def end_to_end() -> Tensor:
        latents = model.denoise()
        with annotate("decode"), torch.no_grad():
            return vae.decode(latents.permute(0, 2, 1, 3, 4) / vae.config.scaling_factor).sample

    return end_to_end


def flops(params: Mapping[str, Any]) -> float | dict[str, float]:
    """Return the FLOPs of the transformer's matrix products over all steps, without the VAE.

    By data type where attention computes in other types than the model.
    """
    config = parse_params(params)
    total, attention = cogvideox_model.flops_per_step(config) * _steps(config), _flops_of_attention(config)
    by_type = implementations.flops_by_dtype(config.attention, attention)
    if not isinstance(by_type, dict):
        return total
    return {**by_type, config.dtype: by_type.get(config.dtype, 0.0) + total - attention}


def phase_work(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return FLOPs and least bytes of attention in one iteration: q, k, v read and the output written once."""
    config = parse_params(params)
    if config.compile:
        return {}
    calls, rows = config.model.layers * _steps(config), config.batch * config.tokens * config.model.width
    path = "transformer > attention" if config.what == "step" else "denoising > transformer > attention"
    flops = implementations.flops_by_dtype(config.attention, _flops_of_attention(config))
    return {path: {"flops": flops, "bytes_moved": 4.0 * calls * rows * config.torch_dtype.itemsize}}


def _flops_of_attention(config: CogVideoXConfig) -> float:
    return 4.0 * config.model.layers * _steps(config) * config.batch * config.tokens**2 * config.model.width


def facts(params: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return the transformer's parameters, the sequence length of attention, and its number of calls."""
    config = parse_params(params)
    return {
        "parameters": (float(cogvideox_model.parameter_count(config)), "1"),
        "tokens": (float(config.tokens), "1"),
        "attention_calls": (float(config.model.layers * _steps(config)), "1"),
    }


def expects(params: Mapping[str, Any]) -> str:
    """Return the kernel family that a trace must contain; ``a|b``: any of them; empty: none."""
    return implementations.expected_family(parse_params(params).attention)


def available(params: Mapping[str, Any]) -> str | None:
    """Return why the case cannot run here and the remedy, or None."""
    config = parse_params(params)
    row = implementations.IMPLEMENTATIONS[config.impl]
    wrong = requirements.unsupported_length(config.attention, row, "frames, height or width")
    return wrong or cogvideox_model.missing_requirement(config)


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Compare attention in the first step with attention in fp32, and the prediction with that of the model in fp32.

    The five measures cover all layers, each with its own q, k and v: some query rows, spread evenly, over all keys.
    ``prediction_rel_l1`` and ``prediction_cosine`` compare the predicted noise with that of the same weights and inputs
    in fp32; they include the rounding of the whole model. With random weights a prediction hardly depends on
    attention, so a small difference in it says little.
    """
    config = replace(parse_params(params), what="step", steps=1, vae_tiling=False)
    attention, prediction = accuracy.Difference(), accuracy.Difference()
    prediction.add(
        _Model(config, cogvideox_model.transformer(config), nullcontext).step().cpu(),
        _predict_in_fp32(replace(config, impl="sdpa_math", compile=False)),  # the same for every implementation
    )
    eager = replace(config, compile=False)
    compared = _compared(eager.attention, cogvideox_model.attend(eager, nullcontext), attention)
    _Model(eager, cogvideox_model.transformer(eager), nullcontext, compared).step()
    whole = prediction.measures()
    return {
        **attention.measures(),
        "prediction_rel_l1": whole["error_rel_l1"],
        "prediction_cosine": whole["cosine"],
    }


# --- parameters ------------------------------------------------------------------------------------------------------


def parse_params(params: Mapping[str, Any]) -> CogVideoXConfig:
    """Return the config of ``params`` with defaults. Raises ValueError for a wrong value."""
    values = add_defaults(params, PARAMS)
    check_choice("impl", values["impl"], implementations.IMPLEMENTATIONS)
    check_choice("size", values["size"], cogvideox_model.SIZES)
    check_choice("what", values["what"], WHAT)
    check_choice("dtype", values["dtype"], attention_config.DTYPES)
    check_bool(values, "guidance", "vae_tiling", "compile")
    check_positive(values, ("frames", "height", "width", "steps"))
    if values["frames"] % cogvideox_model.FRAMES != 1:
        raise ValueError(f"frames must be a multiple of 4 and one more, as 49 is, not {values['frames']}")
    for name in ("height", "width"):
        if values[name] % (cogvideox_model.PIXELS * cogvideox_model.PATCH):
            raise ValueError(f"{name} must be a multiple of 16, not {values[name]}")
    if values["steps"] > 1000:
        raise ValueError(f"steps must be at most 1000, the steps of the training, not {values['steps']}")
    return CogVideoXConfig(**values | {"weights": str(values["weights"])})


def _steps(config: CogVideoXConfig) -> int:
    """Return the number of calls of the transformer in one iteration."""
    return 1 if config.what == "step" else config.steps


# --- one iteration ---------------------------------------------------------------------------------------------------


class _Model:
    """The transformer with swapped attention, and the inputs of the loop; ``seed`` sets all of them."""

    def __init__(
        self, config: CogVideoXConfig, transformer: Any, phase: Phase, attention: attention_config.Forward | None = None
    ) -> None:
        attend = attention or cogvideox_model.attend(config, phase)
        transformer.set_attn_processor(cogvideox_model.SwappedAttention(attend))
        self._setting, self._phase = config, phase
        self._transformer = requirements.compiled_model(transformer, fullgraph=False) if config.compile else transformer
        self._scheduler = cogvideox_model.scheduler(config)
        # Drawn on the CPU, so that the numbers are the same on every machine.
        generator = torch.Generator().manual_seed(config.seed)
        prompts = torch.randn(config.batch, config.model.text, config.model.text_width, generator=generator)
        noise = torch.randn(config.latent, generator=generator) * self._scheduler.init_noise_sigma
        self._prompts, self._noise = (
            made.to(attention_config.device(), config.torch_dtype) for made in (prompts, noise)
        )

    @torch.no_grad()
    def step(self) -> Tensor:
        """Return the predicted noise of the first step: ``(batch, frames, channels, height, width)``."""
        return self._predict(self._noise, self._scheduler.timesteps[0])

    @torch.no_grad()
    def denoise(self) -> Tensor:
        """Return the latents after all steps."""
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


# --- the reference ---------------------------------------------------------------------------------------------------

#: Query rows of each layer that are compared with the reference.
CHECKED_ROWS = 1024


def _compared(
    config: attention_config.AttentionConfig, attend: attention_config.Forward, difference: Any
) -> attention_config.Forward:
    """Return ``attend`` that adds its difference from the reference to ``difference``."""
    rows = slice(None, None, max(1, config.seqlen // CHECKED_ROWS))

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # Before the call, because an implementation may write into its inputs (SageAttention 1 does).
        with accuracy.full_fp32_precision():
            expected = _exact(config, q[:, :, rows], k, v)
        out = attend(q, k, v)
        difference.add(out[:, rows], expected)
        return out

    return attention


def _exact(config: attention_config.AttentionConfig, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention in fp32 with the layouts of ``attend``, in blocks: all scores at once fit no GPU."""
    items = (tuple(tensor[item].transpose(0, 1) for tensor in (q, k, v)) for item in range(config.batch))
    return torch.stack([torch.cat([some for _, _, some in accuracy.reference(config, *item)]) for item in items])


@functools.lru_cache(maxsize=1)
def _predict_in_fp32(config: CogVideoXConfig) -> Tensor:
    """Return the prediction for the weights and inputs of ``config`` in fp32, on the CPU; cached for the next case."""
    exact = replace(config, dtype="fp32")
    weights = torch.nn.Module.float(cogvideox_model.transformer(config))
    model = _Model(exact, weights, nullcontext, functools.partial(_exact, exact.attention))
    # The inputs as the case has them, rounded.
    model._prompts, model._noise = (tensor.to(config.torch_dtype).float() for tensor in (model._prompts, model._noise))
    with accuracy.full_fp32_precision():
        return model.step().cpu()
