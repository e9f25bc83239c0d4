"""Self-attention, one call of one implementation: what profpipe is mostly asked about.

``impl`` names a row of ``IMPLEMENTATIONS``. Each implementation gets its tensors in the layout that its own interface
takes, made before the measured region, so that no copy between layouts is charged to it: ``(batch, heads, seqlen,
head_dim)`` for torch's SDPA and SageAttention, ``(batch, seqlen, heads, head_dim)`` for flash-attn and xformers, all
contiguous. The upstream gradient has the strides of the output, as it would from the layer after it in a model.

The inputs follow from ``seed`` alone and are the same numbers for every implementation. SageAttention 1 subtracts K's
mean from K in place, so from its second call on it works on a K that is already centred; time and result stay the same.

``mode: fwd`` runs the forward pass on tensors that need no gradient. ``mode: fwd_bwd`` adds ``torch.autograd.grad`` for
q, k and v: unlike ``out.backward(g)`` it accumulates into no ``.grad`` and so adds no kernel of its own. The passes
stand in the ranges ``forward`` and ``backward``.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from profpipe.errors import did_you_mean
from profpipe.ranges import annotate

PARAMS = {
    "impl": "sdpa_flash",
    "batch": 2,
    "seqlen": 2048,
    "heads": 16,
    "kv_heads": 0,  # 0: as many as heads
    "head_dim": 128,
    "dtype": "fp16",
    "causal": False,
    "mode": "fwd",
    "seed": 0,
}

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
MODES = ("fwd", "fwd_bwd")

#: q, k, v in the implementation's layout -> the output in it.
Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Setting:
    """The parameters of one case, checked. Queries and keys have the same length."""

    impl: str
    batch: int
    seqlen: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    causal: bool
    mode: str
    seed: int

    @property
    def backward(self) -> bool:
        return self.mode == "fwd_bwd"

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Implementation:
    """One row of the table: how to call it, and what is known beforehand about what it takes.

    ``prepare`` imports what it needs and binds the setting; ``heads_first`` tells the layout. ``family`` gives the
    kernel family on an NVIDIA GPU, ``rocm_family`` on an AMD one; alternatives are separated by ``|``.
    """

    prepare: Callable[[Setting], Forward]
    family: Callable[[Setting], str]
    heads_first: bool = True
    rocm_family: str = ""
    package: str = ""
    install: str = ""
    on_cpu: bool = False
    has_backward: bool = True
    dtypes: tuple[str, ...] = tuple(DTYPES)
    max_head_dim: int | None = None
    least_sm: tuple[int, int] = (0, 0)

    def view(self, tensor: Tensor) -> Tensor:
        """From ``(batch, seqlen, heads, head_dim)`` to this implementation's order of axes, or back; copies nothing."""
        return tensor.transpose(1, 2) if self.heads_first else tensor


# --- what profpipe asks of a workload --------------------------------------------------------------------------------


def build(params: Mapping[str, Any]) -> Callable[[], object]:
    """Allocates the inputs on the GPU (else the CPU) and returns what one iteration runs.

    Raises ValueError for parameters that make no sense on any machine.
    """
    return _iteration(_setting(params), annotate)


def flops(params: Mapping[str, Any]) -> float:
    """Floating-point operations of the two matrix products of a call; softmax and quantisation are not counted.

    Forward: 4 x batch x query heads x queries x visible keys x head_dim. Causal, the mean number of visible keys is
    taken as half the sequence, as FlashAttention 3's benchmark does: (max(0, Sk - Sq) + Sk) / 2 with Sq = Sk. The exact
    count is half a key more, (S + 1) / 2. Backward: 2.5 times the forward, which counts the scores computed again.
    """
    s = _setting(params)
    visible_keys = s.seqlen / 2 if s.causal else s.seqlen
    forward = 4 * s.batch * s.heads * s.seqlen * visible_keys * s.head_dim
    return forward * (3.5 if s.backward else 1)


def bytes_moved(params: Mapping[str, Any]) -> int:
    """Bytes that a call must move to and from memory at least, every tensor once; keys and values by their own heads.

    Forward: reads q, k, v and writes out. Backward: reads q, k, v, out, its gradient and the log-sum-exp (fp32, one a
    query row, written by the forward pass), and writes the three gradients.
    """
    s = _setting(params)
    element = DTYPES[s.dtype].itemsize
    of_q = s.batch * s.heads * s.seqlen * s.head_dim * element
    of_kv = 2 * s.batch * s.kv_heads * s.seqlen * s.head_dim * element
    forward = 2 * of_q + of_kv
    if not s.backward:
        return forward
    log_sum_exp = 4 * s.batch * s.heads * s.seqlen
    return (forward + log_sum_exp) + (4 * of_q + 2 * of_kv + log_sum_exp)


def expects(params: Mapping[str, Any]) -> str:
    """The kernel family that must be found in a trace; ``a|b``: any of them.

    Empty: none, because the implementation is unfused (``sdpa_math``) or runs on a CPU, where kernels have no family.
    """
    setting = _setting(params)
    row = IMPLEMENTATIONS[setting.impl]
    if _device() == "cpu":
        return ""
    return row.rocm_family if torch.version.hip else row.family(setting)


def available(params: Mapping[str, Any]) -> str | None:
    """Why this case cannot run here and what to do about it, or None.

    What is known is looked up; the rest is tried by one call of at most 255 tokens, since which head dims, dtypes and
    head groups a kernel takes depends on how its package was built.
    """
    setting = _setting(params)
    looks = (_unsupported, _no_device, _not_installed, _refused)
    reasons = (look(setting, IMPLEMENTATIONS[setting.impl]) for look in looks)
    return next((reason for reason in reasons if reason), None)


def check(params: Mapping[str, Any]) -> dict[str, float]:
    """Differences from attention computed in fp32 from the same rounded inputs.

    ``error_max`` and ``error_mean`` of the output; in ``fwd_bwd`` also ``error_max_dq``, ``error_mean_dq`` and so on
    for the gradients. Infinite where the implementation gave a NaN.
    """
    setting = _setting(params)
    produced = _produced(setting)
    differences = {name: _Difference() for name in produced}
    # Drawn again, for an implementation may write into its inputs (SageAttention 1 does).
    inputs = _inputs(setting)
    with _full_fp32_precision():
        for item in range(setting.batch):
            for name, rows, expected in _reference(setting, *(tensor[item] for tensor in inputs)):
                differences[name].add(produced[name][item, rows], expected)
    suffixes = {name: "" if name == "out" else f"_{name}" for name in produced}
    largest = {f"error_max{suffixes[name]}": seen.largest for name, seen in differences.items()}
    return largest | {f"error_mean{suffixes[name]}": seen.mean for name, seen in differences.items()}


# --- parameters and inputs -------------------------------------------------------------------------------------------


def _setting(params: Mapping[str, Any]) -> Setting:
    """The parameters with defaults; ValueError names the wrong one and what is possible."""
    for name in params:
        if name not in PARAMS:
            raise ValueError(f"unknown parameter {name!r}. {did_you_mean(name, PARAMS)}")
    values = {**PARAMS, **params}
    values["kv_heads"] = values["kv_heads"] or values["heads"]
    for name, known in (("impl", IMPLEMENTATIONS), ("dtype", DTYPES), ("mode", MODES)):
        if values[name] not in known:
            raise ValueError(f"unknown {name} {values[name]!r}. {did_you_mean(str(values[name]), known)}")
    for name in ("batch", "seqlen", "heads", "kv_heads", "head_dim"):
        if type(values[name]) is not int or values[name] < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {values[name]!r}")
    if type(values["causal"]) is not bool:
        raise ValueError(f"causal must be true or false, not {values['causal']!r}")
    if values["heads"] % values["kv_heads"]:
        raise ValueError(f"heads ({values['heads']}) must be a multiple of kv_heads ({values['kv_heads']})")
    return Setting(**values)


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _inputs(setting: Setting) -> list[Tensor]:
    """q, k, v and, for the backward pass, the upstream gradient: ``(batch, seqlen, heads, head_dim)``, normal."""
    device = _device()
    generator = torch.Generator(device).manual_seed(setting.seed)
    heads = [setting.heads, setting.kv_heads, setting.kv_heads] + [setting.heads] * setting.backward
    return [
        torch.randn(
            (setting.batch, setting.seqlen, count, setting.head_dim),
            generator=generator,
            device=device,
            dtype=DTYPES[setting.dtype],
        )
        for count in heads
    ]


# --- one iteration ---------------------------------------------------------------------------------------------------


def _iteration(setting: Setting, phase: Callable[[str], AbstractContextManager[object]]) -> Callable[[], Tensor]:
    """What one iteration runs, its two passes each in a ``phase``. Returns (output, gradients...)."""
    row = IMPLEMENTATIONS[setting.impl]
    forward = row.prepare(setting)
    q, k, v, *upstream = _inputs(setting)
    q, k, v = (row.view(tensor).contiguous().requires_grad_(setting.backward) for tensor in (q, k, v))

    def forward_only() -> tuple[Tensor, ...]:
        with phase("forward"):
            return (forward(q, k, v),)

    if not setting.backward:
        return forward_only

    # Only a call tells the strides of the output. A gradient with others would be copied by cuDNN's backward pass.
    with torch.no_grad():
        out_gradient = torch.empty_like(forward(q, k, v))
    out_gradient.copy_(row.view(upstream.pop()).reshape(out_gradient.shape))

    def forward_and_backward() -> tuple[Tensor, ...]:
        with phase("forward"):
            out = forward(q, k, v)
        with phase("backward"):
            return (out, *torch.autograd.grad(out, (q, k, v), out_gradient))

    return forward_and_backward


def _produced(setting: Setting) -> dict[str, Tensor]:
    """The output and gradients of one call as ``(batch, seqlen, heads, head_dim)``."""
    view = IMPLEMENTATIONS[setting.impl].view
    results = _iteration(setting, nullcontext)()
    heads = (setting.heads, setting.heads, setting.kv_heads, setting.kv_heads)
    return {
        name: view(tensor.detach()).reshape(setting.batch, setting.seqlen, count, setting.head_dim)
        for name, tensor, count in zip(("out", "dq", "dk", "dv"), results, heads, strict=False)
    }


# --- the reference ---------------------------------------------------------------------------------------------------

#: Size that one block of fp32 scores may have. Four such blocks live at once in the backward pass.
_SCORES_BYTES = 256 * 2**20


@dataclass
class _Difference:
    """Largest and mean absolute difference, gathered block by block."""

    largest: float = 0.0
    total: float = 0.0
    count: int = 0

    def add(self, got: Tensor, expected: Tensor) -> None:
        distance = (got.float() - expected).abs().nan_to_num(nan=math.inf)
        self.largest = max(self.largest, distance.max().item())
        self.total += distance.sum(dtype=torch.float64).item()
        self.count += distance.numel()

    @property
    def mean(self) -> float:
        return self.total / self.count


def _reference(
    setting: Setting, q: Tensor, k: Tensor, v: Tensor, out_gradient: Tensor | None = None
) -> Iterator[tuple[str, slice, Tensor]]:
    """Attention of one batch item in fp32: (name, rows of the sequence, values), some query rows at a time.

    The query heads of a group are rows of one product with their shared keys, so the sums over a group that dk and dv
    need are part of the product.
    """
    s, scale = setting, 1 / math.sqrt(setting.head_dim)
    k, v = (tensor.float().transpose(0, 1) for tensor in (k, v))
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    step = max(1, _SCORES_BYTES // (4 * s.heads * s.seqlen))

    def grouped(tensor: Tensor) -> Tensor:
        """``(rows, heads, d)`` to ``(kv_heads, group x rows, d)``."""
        return tensor.float().unflatten(1, (s.kv_heads, s.group)).permute(1, 2, 0, 3).flatten(1, 2)

    def ungrouped(tensor: Tensor) -> Tensor:
        return tensor.unflatten(1, (s.group, -1)).permute(2, 0, 1, 3).flatten(1, 2)

    for start in range(0, s.seqlen, step):
        rows = slice(start, min(start + step, s.seqlen))
        queries = grouped(q[rows])
        scores = queries @ k.mT * scale
        if s.causal:
            row, column = torch.arange(s.seqlen, device=q.device)[rows, None], torch.arange(s.seqlen, device=q.device)
            scores.masked_fill_((column > row).repeat(s.group, 1), -math.inf)
        weights = scores.softmax(-1)
        out = weights @ v
        yield "out", rows, ungrouped(out)
        if out_gradient is not None:
            d_out = grouped(out_gradient[rows])
            dv += weights.mT @ d_out
            d_scores = weights * (d_out @ v.mT - (d_out * out).sum(-1, keepdim=True)) * scale
            dk += d_scores.mT @ queries
            yield "dq", rows, ungrouped(d_scores @ k)
    if out_gradient is not None:
        yield "dk", slice(None), dk.transpose(0, 1)
        yield "dv", slice(None), dv.transpose(0, 1)


@contextmanager
def _full_fp32_precision() -> Iterator[None]:
    """TF32 would round the reference to fp16's mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# --- the implementations ---------------------------------------------------------------------------------------------


def _switches() -> dict[str, tuple[Callable[[], bool], Callable[[bool], None]]]:
    """How torch is asked and told whether SDPA may choose a backend; releases before 2.4 have no cuDNN."""
    cuda = torch.backends.cuda
    names = [name for name in ("flash", "mem_efficient", "math", "cudnn") if hasattr(cuda, f"enable_{name}_sdp")]
    return {name: (getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp")) for name in names}


class _OnlyBackend:
    """Lets SDPA choose one backend and no other, as ``torch.nn.attention.sdpa_kernel`` does, for each call.

    ``sdpa_kernel`` takes 8 us to enter and leave, a third of the host's work for a small call; these switches, which
    it sets too, take 1 us. They are read by the forward pass only: its node of the graph knows its backward kernel.
    """

    def __init__(self, backend: str) -> None:
        switches = _switches()
        if backend not in switches:
            raise ValueError(f"torch {torch.__version__} has no SDPA backend {backend!r}: it needs 2.5 or later")
        self._asked = [is_enabled for is_enabled, _ in switches.values()]
        self._told = [(enable, name == backend) for name, (_, enable) in switches.items()]
        self._before: list[bool] = []

    def __enter__(self) -> None:
        self._before = [is_enabled() for is_enabled in self._asked]
        for enable, wanted in self._told:
            enable(wanted)

    def __exit__(self, *_: object) -> None:
        for (enable, _wanted), before in zip(self._told, self._before, strict=True):
            enable(before)


def _sdpa(backend: str) -> Callable[[Setting], Forward]:
    def prepare(setting: Setting) -> Forward:
        only = _OnlyBackend(backend)
        # Given only where needed: the argument is new in torch 2.5, and not every backend takes it.
        grouped = {"enable_gqa": True} if setting.group > 1 else {}

        def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with only:
                return scaled_dot_product_attention(q, k, v, is_causal=setting.causal, **grouped)

        return forward

    return prepare


def _flash_attn(setting: Setting) -> Forward:
    from flash_attn import flash_attn_func

    return lambda q, k, v: flash_attn_func(q, k, v, causal=setting.causal)


def _sage(setting: Setting) -> Forward:
    from sageattention import sageattn

    # 1.0.6 and 2.x: on Hopper, 2.x chooses its fp8 kernel for sm_90.
    return lambda q, k, v: sageattn(q, k, v, tensor_layout="HND", is_causal=setting.causal)


def _sage_family(setting: Setting) -> str:
    """2.x runs 1.x's Triton kernel on sm_86."""
    try:
        version = metadata.version("sageattention")
    except metadata.PackageNotFoundError:
        return "sage1|sage2"
    if version.startswith("1."):
        return "sage1"
    return "sage1|sage2" if torch.cuda.get_device_capability() == (8, 6) else "sage2"


def _xformers(setting: Setting) -> Forward:
    """Grouped heads are a fifth axis, over which K and V are expanded: views, which its operators know."""
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    mask = LowerTriangularMask() if setting.causal else None
    return lambda q, k, v: memory_efficient_attention(*_by_group(setting, q, k, v), attn_bias=mask)


def _by_group(setting: Setting, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if setting.group == 1:
        return q, k, v
    k, v = (tensor.unsqueeze(3).expand(-1, -1, -1, setting.group, -1) for tensor in (k, v))
    return q.unflatten(2, (setting.kv_heads, setting.group)), k, v


def _xformers_family(setting: Setting) -> str:
    """xformers takes the first operator that accepts the inputs: FlashAttention 3 or 2 where installed, else CUTLASS.

    It is asked which (``xformers.ops.fmha.dispatch``, not a public interface: without it, any of them is expected).
    """
    families = {"fa3": "fa3", "flash3": "fa3", "fa2": "fa2", "flshatt": "fa2", "cutlass": "cutlass_fmha", "ck": "ck"}
    try:
        fmha = importlib.import_module("xformers.ops.fmha")
        dispatch = importlib.import_module("xformers.ops.fmha.dispatch")
        mask = fmha.attn_bias.LowerTriangularMask() if setting.causal else None
        inputs = fmha.Inputs(*_by_group(setting, *_inputs(replace(setting, batch=1, seqlen=1))[:3]), mask)
        operators = [dispatch._dispatch_fw(inputs, setting.backward)]
        if setting.backward:
            operators.append(dispatch._dispatch_bw(inputs, None))
    except (ImportError, AttributeError, TypeError, NotImplementedError):
        return "cutlass_fmha|fa2|fa3"
    found = [next((f for start, f in families.items() if o.NAME.startswith(start)), "") for o in operators]
    return "|".join(dict.fromkeys(filter(None, found)))


def _fixed(family: str) -> Callable[[Setting], str]:
    return lambda setting: family


_HALF = ("fp16", "bf16")
_AMPERE = (8, 0)

IMPLEMENTATIONS: dict[str, Implementation] = {
    "sdpa_math": Implementation(_sdpa("math"), _fixed(""), on_cpu=True),
    "sdpa_flash": Implementation(
        _sdpa("flash"), _fixed("fa2"), rocm_family="aotriton|ck", on_cpu=True, least_sm=_AMPERE
    ),
    "sdpa_efficient": Implementation(_sdpa("mem_efficient"), _fixed("cutlass_fmha"), rocm_family="aotriton"),
    "sdpa_cudnn": Implementation(_sdpa("cudnn"), _fixed("cudnn"), dtypes=_HALF, least_sm=_AMPERE),
    "fa2": Implementation(
        _flash_attn,
        _fixed("fa2"),
        heads_first=False,
        rocm_family="ck|aotriton",
        package="flash_attn",
        install="pip install flash-attn --no-build-isolation",
        dtypes=_HALF,
        max_head_dim=256,
        least_sm=_AMPERE,
    ),
    "sage": Implementation(
        _sage,
        _sage_family,
        package="sageattention",
        install="pip install sageattention (1.0.6, Triton), or build 2.x from github.com/thu-ml/SageAttention",
        has_backward=False,
        max_head_dim=128,
        least_sm=_AMPERE,
    ),
    "xformers": Implementation(
        _xformers,
        _xformers_family,
        heads_first=False,
        rocm_family="ck",
        package="xformers",
        install="pip install xformers, of the release made for your torch (pip would replace torch otherwise)",
    ),
}


# --- why an implementation cannot run here ---------------------------------------------------------------------------


def _unsupported(setting: Setting, row: Implementation) -> str | None:
    """What no build of the implementation can do, on no machine."""
    if setting.backward and not row.has_backward:
        return f"{setting.impl} has no backward pass. Use mode: fwd."
    if setting.dtype not in row.dtypes:
        return f"{setting.impl} does not take {setting.dtype}. Use dtype: {' or '.join(row.dtypes)}."
    if row.max_head_dim is not None and setting.head_dim > row.max_head_dim:
        return f"{setting.impl} takes head dims up to {row.max_head_dim}, not {setting.head_dim}. Change head_dim."
    return None


def _no_device(setting: Setting, row: Implementation) -> str | None:
    if _device() == "cpu":
        if row.on_cpu:
            return None
        here = " or ".join(name for name, other in IMPLEMENTATIONS.items() if other.on_cpu)
        if torch.version.cuda is None and torch.version.hip is None:
            return (
                f"{setting.impl} needs a GPU, and torch {torch.__version__} is built for the CPU only. "
                f"Install a CUDA build of torch on a machine with a GPU, or use {here} here."
            )
        return f"{setting.impl} needs a GPU, and torch sees none. Run it where there is one, or use {here} here."
    capability = torch.cuda.get_device_capability()
    if torch.version.cuda is not None and capability < row.least_sm:
        have, need = ("sm_{}{}".format(*sm) for sm in (capability, row.least_sm))
        return f"{setting.impl} needs {need} or later; this GPU is {have}. Use sdpa_efficient or sdpa_math on it."
    return None


def _not_installed(setting: Setting, row: Implementation) -> str | None:
    if not row.package:
        return None
    if importlib.util.find_spec(row.package) is None:
        return f"{row.package} is not installed. {row.install}."
    try:
        importlib.import_module(row.package)
    except (ImportError, OSError, RuntimeError) as error:
        return (
            f"{row.package} is installed and cannot be loaded: {_one_line(error)}. "
            f"Build or install it for torch {torch.__version__} (CUDA {torch.version.cuda})."
        )
    return None


def _refused(setting: Setting, row: Implementation) -> str | None:
    """What the implementation itself says to one small call with this dtype, head dim, heads, mask and mode."""
    # Lengths keep their remainder: some kernels accept only multiples of 8, 64 or 128.
    small = replace(setting, batch=1, seqlen=min(setting.seqlen, 128 + setting.seqlen % 128))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            _iteration(small, nullcontext)()
            if _device() == "cuda":
                torch.cuda.synchronize()
            return None
        except torch.cuda.OutOfMemoryError:
            return None  # the case itself will say so, and it is no property of the implementation
        except (AssertionError, RuntimeError, ValueError) as error:
            if "CUDA error" in str(error):
                raise  # the context is lost: a failure of the process, not a property of the case
            said = (not row.package and _backend_reasons(caught)) or _one_line(error)
    return (
        f"{setting.impl} refuses this case: {said}. "
        f"Change head_dim, dtype, kv_heads, seqlen or mode, or use another build of {row.package or 'torch'}."
    )


def _backend_reasons(caught: list[warnings.WarningMessage]) -> str:
    """SDPA's error says only "No available kernel"; the reasons are warnings beside it, among those we asked for."""
    texts = [re.sub(r"\s*\(Triggered internally.*", "", str(w.message), flags=re.S).rstrip(". ") for w in caught]
    asked_for = ("not used because:", "runtime disabled")
    return "; ".join(dict.fromkeys(t for t in texts if t and not any(word in t for word in asked_for)))


def _one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error), 500).rstrip(".") or type(error).__name__
