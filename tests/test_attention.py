"""The attention workload: its formulas by hand-computed numbers, its results against an independent reference.

These run on a CPU. Where a test needs what only a GPU machine has (a CUDA device, an attention package), it replaces
that one thing and says so.
"""

import math
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lazy
import pytest
from stand_in_gpu import pretend_cuda

from profpipe.runner import job_cache

torch = lazy.module("torch")

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "workloads" / "attention.py"
attention = lazy.workload(SCRIPT)
accuracy = lazy.module("profpipe.workload_lib.accuracy")
attention_lib = lazy.module("profpipe.workload_lib.attention")
attention_config = lazy.module("profpipe.workload_lib.attention_config")
implementations = lazy.module("profpipe.workload_lib.implementations")
requirements = lazy.module("profpipe.workload_lib.requirements")

SMALL = {"batch": 2, "seqlen": 40, "heads": 4, "head_dim": 16, "dtype": "fp32"}
ON_CPU = ("sdpa_math", "sdpa_flash", "plain", "tiled")  # plain_compiled has separate tests: each case is compiled

pytestmark = [lazy.needs("torch"), pytest.mark.usefixtures("on_the_cpu")]


def _replace_implementation(monkeypatch, prepare, **changes):
    """Puts ``mine`` into the table, an implementation that runs anywhere."""
    row = implementations.Implementation(prepare, lambda setting: "", on_cpu=True, **changes)
    monkeypatch.setitem(implementations.IMPLEMENTATIONS, "mine", row)


# --- formulas --------------------------------------------------------------------------------------------------------


def test_forward_counts_both_matrix_products():
    # 4 x 2 batch x 16 heads x 1024 x 1024 x 64
    shape = {"batch": 2, "seqlen": 1024, "heads": 16, "head_dim": 64}
    assert attention.flops(shape) == 8_589_934_592


def test_causal_counts_half_the_keys_and_backward_two_and_a_half_forwards():
    shape = {"batch": 2, "seqlen": 1024, "heads": 16, "head_dim": 64}
    assert attention.flops({**shape, "causal": True}) == 4_294_967_296
    assert attention.flops({**shape, "mode": "fwd_bwd"}) == 30_064_771_072
    assert attention.flops({**shape, "mode": "fwd_bwd", "causal": True}) == 15_032_385_536


def test_flops_go_by_query_heads_and_bytes_by_both_kinds():
    shape = {"batch": 1, "seqlen": 8, "heads": 4, "head_dim": 16, "dtype": "fp16"}
    grouped = {**shape, "kv_heads": 2}
    assert attention.flops(grouped) == attention.flops(shape) == 16_384
    # q and out 1024 bytes each, k and v 1024 each; with two kv heads 512 each
    assert attention.bytes_moved(shape) == 4096
    assert attention.bytes_moved(grouped) == 3072


def test_backward_reads_six_tensors_and_writes_three():
    shape = {"batch": 1, "seqlen": 8, "heads": 4, "kv_heads": 2, "head_dim": 16, "dtype": "fp16", "mode": "fwd_bwd"}
    forward = 3072 + 128  # q, k, v, out and the log-sum-exp: 4 bytes x 4 heads x 8 rows
    backward = (1024 + 512 + 512 + 1024 + 1024 + 128) + (1024 + 512 + 512)
    assert attention.bytes_moved(shape) == forward + backward


def test_the_backward_pass_alone_is_what_it_adds_to_the_forward_pass():
    shape = {"batch": 1, "seqlen": 8, "heads": 4, "kv_heads": 2, "head_dim": 16, "dtype": "fp16"}
    assert attention.flops({**shape, "mode": "bwd"}) == 2.5 * 16_384
    backward = (1024 + 512 + 512 + 1024 + 1024 + 128) + (1024 + 512 + 512)
    assert attention.bytes_moved({**shape, "mode": "bwd"}) == backward


def test_one_query_sees_every_key_causal_or_not_and_the_keys_are_what_moves():
    decode = {"batch": 3, "seqlen": 4096, "queries": 1, "heads": 8, "kv_heads": 2, "head_dim": 64, "dtype": "bf16"}
    assert attention.flops(decode) == attention.flops({**decode, "causal": True}) == 4 * 3 * 8 * 4096 * 64
    # q and out: 3 x 8 x 64 numbers each; k and v: 3 x 2 x 4096 x 64 each; two bytes a number
    assert attention.bytes_moved(decode) == 2 * (2 * 1536 + 2 * 1_572_864)


def test_fewer_queries_than_keys_see_all_that_is_before_them():
    # The mean of 96.5 to 128 visible keys is taken as (96 + 128) / 2.
    shape = {"batch": 1, "seqlen": 128, "queries": 32, "heads": 1, "head_dim": 8, "causal": True}
    assert attention.flops(shape) == 4 * 32 * 112 * 8


def test_fp32_moves_twice_the_bytes_of_fp16():
    assert attention.bytes_moved({"dtype": "fp32"}) == 2 * attention.bytes_moved({"dtype": "fp16"})


def test_quantised_products_are_given_by_the_data_types_that_they_are_computed_in(monkeypatch):
    shape = {"batch": 2, "seqlen": 32, "heads": 4, "head_dim": 8}
    half = attention.flops(shape) / 2

    def parts(impl):
        return attention.flops({**shape, "impl": impl})

    pretend_cuda(monkeypatch)
    assert parts("sage1") == parts("sparge_fp16") == {"int8": half, "fp16": half}
    assert parts("sage2") == parts("sparge_fp8") == {"int8": half, "fp8": half}
    assert all(parts(impl) == 2 * half for impl in ("fa2", "fa3", "sdpa_cudnn", "sta", "plain"))
    pretend_cuda(monkeypatch, (8, 6))
    assert parts("sage2") == {"int8": half, "fp16": half}, "fp8 comes with sm_89"


def test_the_math_backend_multiplies_16_bit_tensors_in_fp32_by_default():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Products(TorchDispatchMode):
        """Notes the types that matrices are multiplied in."""

        def __init__(self):
            super().__init__()
            self.types: set[Any] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is torch.ops.aten.bmm.default:
                self.types |= {tensor.dtype for tensor in args}
            return func(*args, **(kwargs or {}))

    shape = {"impl": "sdpa_math", "batch": 1, "seqlen": 16, "heads": 2, "head_dim": 8, "dtype": "bf16"}

    def product_types():
        call = attention.build(shape)
        with Products() as seen:
            call()
        return seen.types

    dense = attention.flops({**shape, "dtype": "fp32"})
    assert isinstance(dense, float | int), "its own type"
    assert product_types() == {torch.float32} and attention.flops(shape) == {"fp32": dense}
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    try:
        assert product_types() == {torch.bfloat16} and attention.flops(shape) == dense
    finally:
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
    torch.set_float32_matmul_precision("high")
    try:
        assert attention.flops(shape) == {"tf32": dense}
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(("version", "values"), [("1.0.6", "fp16"), ("2.2.0", "fp8")])
def test_sage_computes_in_the_types_of_the_generation_that_is_installed(monkeypatch, version, values):
    pretend_cuda(monkeypatch)
    monkeypatch.setattr(implementations.metadata, "version", lambda name: version)
    assert set(attention.flops({"impl": "sage"})) == {"int8", values}


def test_the_shared_modules_are_part_of_the_workloads_fingerprint():
    names = {"accuracy", "attention", "attention_config", "implementations", "requirements"}
    assert names <= {path.stem for path in job_cache.trace_imports([SCRIPT], [ROOT])}


# --- results ---------------------------------------------------------------------------------------------------------


def _plain_attention(q, k, v, causal):
    """Written the long way round, in fp64, with every head of K and V repeated."""
    repeat = q.shape[2] // k.shape[2]
    q, k, v = q.transpose(1, 2), k.repeat_interleave(repeat, 2).transpose(1, 2), v.repeat_interleave(repeat, 2)
    scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
    if causal:
        earlier = scores.shape[-1] - scores.shape[-2]
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1 + earlier).bool(), -math.inf)
    return (scores.softmax(-1) @ v.transpose(1, 2)).transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("kv_heads", "queries"), [(0, 0), (2, 0), (1, 0), (2, 23), (4, 1)])
def test_the_reference_in_blocks_equals_autograd_in_fp64(monkeypatch, causal, kv_heads, queries):
    case = attention_lib.case_from(
        {**attention.PARAMS, **SMALL, "kv_heads": kv_heads, "queries": queries, "causal": causal, "mode": "fwd_bwd"}
    )
    monkeypatch.setattr(accuracy, "SCORES_BYTES", 4 * case.heads * case.seqlen * 7)  # 7 rows: 6 blocks of 40
    q, k, v, g = (tensor.double().requires_grad_() for tensor in attention_config.draw(case))
    out = _plain_attention(q, k, v, causal)
    expected = dict(zip(("out", "dq", "dk", "dv"), (out, *torch.autograd.grad(out, (q, k, v), g)), strict=True))
    rows_seen = dict.fromkeys(expected, 0)
    for item in range(case.batch):
        for name, rows, values in accuracy.reference(case, *(t[item].detach() for t in (q, k, v, g))):
            torch.testing.assert_close(values.double(), expected[name][item, rows].detach(), rtol=1e-4, atol=1e-5)
            rows_seen[name] += len(values)
    lengths = {"out": case.queries, "dq": case.queries, "dk": case.seqlen, "dv": case.seqlen}
    assert rows_seen == {name: case.batch * length for name, length in lengths.items()}


@pytest.mark.parametrize("impl", ON_CPU)
@pytest.mark.parametrize("mode", ["fwd", "bwd", "fwd_bwd"])
@pytest.mark.parametrize(("causal", "queries"), [(False, 0), (True, 0), (False, 7), (True, 1)])
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_implementations_agree_with_the_reference(impl, mode, causal, queries, kv_heads):
    shape = {**SMALL, "queries": queries, "kv_heads": kv_heads}
    errors = attention.check({**shape, "impl": impl, "mode": mode, "causal": causal})
    names = [""] if mode == "fwd" else ["", "_dq", "_dk", "_dv"]
    kinds = ("error_max", "error_mean", "error_rel_l1", "error_rmse", "cosine")
    assert set(errors) == {f"{kind}{name}" for kind in kinds for name in names}
    assert 0 <= errors["error_mean"] <= errors["error_rmse"] <= errors["error_max"] < 1e-5
    assert all(value < 1e-4 for name, value in errors.items() if name.startswith("error"))
    assert all(value > 1 - 1e-8 for name, value in errors.items() if name.startswith("cosine"))


def test_bf16_is_further_from_the_reference_than_fp32():
    exact, rounded = (attention.check({**SMALL, "dtype": dtype})["error_max"] for dtype in ("fp32", "bf16"))
    assert exact < 1e-5 < 1e-4 < rounded < 1e-1


def test_a_nan_anywhere_makes_the_error_infinite(monkeypatch):
    _replace_implementation(monkeypatch, lambda setting: lambda q, k, v: q.index_fill(2, torch.tensor([3]), math.nan))
    errors = attention.check({**SMALL, "impl": "mine"})
    assert errors.pop("cosine") == -1
    assert set(errors.values()) == {math.inf}


def test_an_implementation_that_writes_into_k_is_still_checked_against_what_it_was_given(monkeypatch):
    def prepare(setting):
        exact = implementations.sdpa("math")(setting)
        # As SageAttention 1 does; attention does not change when a constant is taken from all keys.
        return lambda q, k, v: exact(q, k.sub_(k.mean(2, keepdim=True)), v) + 1

    _replace_implementation(monkeypatch, prepare)
    errors = attention.check({**SMALL, "impl": "mine"})
    assert errors["error_max"] == pytest.approx(1, abs=1e-4)
    assert errors["error_mean"] == pytest.approx(1, abs=1e-4)


def test_one_seed_gives_every_implementation_the_same_numbers():
    flash, math_, other = (
        attention.build({**SMALL, "impl": impl, "seed": seed})()[0]
        for impl, seed in (("sdpa_flash", 1), ("sdpa_math", 1), ("sdpa_flash", 2))
    )
    torch.testing.assert_close(flash, math_)
    assert not torch.allclose(flash, other)


# --- what one iteration does -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "expected"), [("fwd", ["forward"]), ("bwd", ["backward"]), ("fwd_bwd", ["forward", "backward"])]
)
def test_passes_stand_in_ranges(opened, mode, expected):
    seen = opened(attention)
    iteration = attention.build({**SMALL, "mode": mode})
    assert seen == []
    iteration()
    assert seen == expected


@pytest.mark.parametrize(("heads_first", "shape"), [(True, (2, 4, 40, 16)), (False, (2, 40, 4, 16))])
def test_tensors_are_contiguous_in_the_layout_of_the_implementation(monkeypatch, heads_first, shape):
    given: list[Any] = []
    _replace_implementation(
        monkeypatch, lambda setting: lambda q, k, v: given.append((q, k, v)) or q + k + v, heads_first=heads_first
    )
    attention.build({**SMALL, "impl": "mine"})()
    (tensors,) = given
    assert all(tensor.shape == shape and tensor.is_contiguous() for tensor in tensors)


def test_the_upstream_gradient_has_the_strides_of_the_output(monkeypatch):
    received: list[Any] = []

    class Transposing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q):
            return q.transpose(1, 2).contiguous().transpose(1, 2)

        @staticmethod
        def backward(ctx, gradient):
            received.append(gradient)
            return gradient

    _replace_implementation(monkeypatch, lambda setting: lambda q, k, v: Transposing.apply(q) + 0 * (k + v))
    out, *_ = attention.build({**SMALL, "impl": "mine", "mode": "fwd_bwd"})()
    assert received[0].stride() == out.stride() != received[0].contiguous().stride()


def test_inputs_need_a_gradient_only_for_the_backward_pass_and_gather_none():
    (out,) = attention.build(SMALL)()
    assert not out.requires_grad
    iteration = attention.build({**SMALL, "mode": "fwd_bwd", "kv_heads": 2})
    _, dq, dk, dv = iteration()
    again = iteration()[1]
    assert dq.shape == (2, 4, 40, 16)
    assert dk.shape == dv.shape == (2, 2, 40, 16)
    torch.testing.assert_close(dq, again)


def test_the_backward_pass_alone_can_be_run_again_and_again_and_gives_the_same_gradients():
    both = attention.build({**SMALL, "mode": "fwd_bwd"})()
    alone = attention.build({**SMALL, "mode": "bwd"})
    for _ in range(2):
        for got, expected in zip(alone(), both, strict=True):
            torch.testing.assert_close(got, expected)


def test_sdpa_can_choose_one_backend_during_the_call_and_any_after_it():
    def enabled():
        return {name: is_enabled() for name, (is_enabled, _) in implementations.switches().items()}

    before = enabled()
    with implementations.OnlyBackend("math"):
        assert [name for name, on in enabled().items() if on] == ["math"]
    assert enabled() == before
    with pytest.raises(KeyError), implementations.OnlyBackend("cudnn"):
        raise KeyError
    assert enabled() == before


# --- what cannot run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ON_CPU)
@pytest.mark.parametrize("mode", ["fwd", "fwd_bwd"])
def test_some_implementations_run_on_a_cpu(impl, mode):
    assert attention.available({**SMALL, "impl": impl, "mode": mode}) is None


def test_the_others_name_the_gpu_they_need_and_what_runs_without():
    for impl, row in implementations.IMPLEMENTATIONS.items():
        if not row.on_cpu:
            seqlen = row.lengths[0] if row.lengths else SMALL["seqlen"]
            dtype = "fp16" if "fp16" in row.dtypes else row.dtypes[0]
            reason = attention.available({**SMALL, "dtype": dtype, "impl": impl, "seqlen": seqlen})
            assert reason.startswith(f"{impl} needs a GPU")
            assert "sdpa_math or sdpa_flash" in reason


def test_what_a_cpu_takes_and_no_gpu_does_is_refused_there_as_others_refuse_it(monkeypatch):
    assert attention.available({**SMALL, "impl": "sdpa_flash", "dtype": "fp32"}) is None
    pretend_cuda(monkeypatch)
    reason = attention.available({"impl": "sdpa_flash", "dtype": "fp32"})
    assert reason == "sdpa_flash does not take fp32. Use dtype: fp16 or bf16."


def test_a_missing_package_is_named_with_its_installation(monkeypatch):
    pretend_cuda(monkeypatch)
    monkeypatch.setattr(requirements.importlib.util, "find_spec", lambda name: None)
    assert attention.available({"impl": "fa2"}) == (
        "flash_attn is not installed. pip install flash-attn --no-build-isolation."
    )


def test_a_package_built_for_another_torch_has_another_reason_than_a_missing_one(monkeypatch, tmp_path):
    pretend_cuda(monkeypatch)
    (tmp_path / "sageattention.py").write_text("raise ImportError('undefined symbol: _ZN3c104cuda')")
    monkeypatch.syspath_prepend(tmp_path)
    reason = attention.available({"impl": "sage"})
    assert reason.startswith("sageattention is installed and cannot be loaded: undefined symbol: _ZN3c104cuda. Build")


def test_an_older_gpu_is_named_by_its_architecture(monkeypatch):
    pretend_cuda(monkeypatch, capability=(7, 5))
    reason = attention.available({"impl": "sdpa_flash"})
    assert reason.startswith("sdpa_flash needs sm_80 or later; this GPU is sm_75.")


def test_the_error_of_a_small_call_becomes_the_reason(monkeypatch):
    def prepare(setting):
        assert setting.batch == 1
        assert setting.seqlen == 128 + 1000 % 128
        raise RuntimeError("This flash attention build does not support\n headdim 96.")

    _replace_implementation(monkeypatch, prepare, package="json")
    reason = attention.available({"impl": "mine", "seqlen": 1000, "batch": 4, "head_dim": 96})
    assert reason.startswith("mine rejects this case: This flash attention build does not support headdim 96. Change")
    assert reason.endswith("another build of json.")


def test_reasons_that_sdpa_gives_as_warnings_are_kept(monkeypatch):
    """The warnings are those of torch 2.11's CUDA build; no CPU build emits them."""
    texts = (
        "Flash attention kernel not used because: (Triggered internally at sdp_utils.cpp:901.)",
        "Flash attention has been runtime disabled. (Triggered internally at sdp_utils.cpp:552.)",
        "CuDNN attention kernel not used because: (Triggered internally at sdp_utils.cpp:905.)",
        "cuDNN SDPA does not support head_dim 512. (Triggered internally at sdp_utils.cpp:421.)",
    )

    def prepare(setting):
        for text in texts:
            warnings.warn(text, stacklevel=1)
        raise RuntimeError("No available kernel. Aborting execution.")

    _replace_implementation(monkeypatch, prepare)
    reason = attention.available({**SMALL, "impl": "mine"})
    assert reason.startswith("mine rejects this case: cuDNN SDPA does not support head_dim 512. Change head_dim")


def test_a_lost_cuda_context_is_a_failure_and_no_reason(monkeypatch):
    def prepare(setting):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    _replace_implementation(monkeypatch, prepare)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        attention.available({**SMALL, "impl": "mine"})


def test_memory_that_runs_out_in_the_small_call_leaves_the_answer_to_the_case(monkeypatch):
    def prepare(setting):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    _replace_implementation(monkeypatch, prepare)
    assert attention.available({**SMALL, "impl": "mine"}) is None


# --- expected kernel families ----------------------------------------------------------------------------------------


def test_no_family_is_expected_on_a_cpu():
    assert {attention.expects({"impl": impl}) for impl in implementations.IMPLEMENTATIONS} == {""}


def test_each_implementation_expects_its_family_on_a_gpu(monkeypatch):
    pretend_cuda(monkeypatch)
    families = {impl: attention.expects({"impl": impl}) for impl in ("sdpa_math", "sdpa_flash", "sdpa_cudnn", "fa2")}
    assert families == {"sdpa_math": "", "sdpa_flash": "fa2", "sdpa_cudnn": "cudnn", "fa2": "fa2"}
    assert attention.expects({"impl": "sdpa_efficient"}) == "cutlass_fmha"


@pytest.mark.parametrize(
    ("version", "capability", "family"),
    [("1.0.6", (9, 0), "sage1"), ("2.2.0", (9, 0), "sage2"), ("2.1.1", (8, 6), "sage1|sage2")],
)
def test_sage_expects_the_generation_that_is_installed(monkeypatch, version, capability, family):
    pretend_cuda(monkeypatch, capability)
    monkeypatch.setattr(implementations.metadata, "version", lambda name: version)
    assert attention.expects({"impl": "sage"}) == family


@contextmanager
def xformers_with(dispatch, folder, monkeypatch):
    """Put a stand-in with the interface of xformers 0.0.35, and this code of its dispatch, in the place of xformers."""
    package = folder / "xformers" / "ops" / "fmha"
    package.mkdir(parents=True)
    (folder / "xformers" / "__init__.py").touch()
    (folder / "xformers" / "ops" / "__init__.py").touch()
    (package / "__init__.py").write_text(
        "from . import attn_bias\nInputs = lambda query, key, value, attn_bias: query\n"
    )
    (package / "attn_bias.py").write_text("class LowerTriangularMask: pass\n")
    (package / "dispatch.py").write_text(dispatch)
    monkeypatch.syspath_prepend(folder)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "xformers"]:
            del sys.modules[name]


@pytest.mark.parametrize(
    ("mode", "operators", "family"),
    [
        ("fwd", ("cutlassF-pt", ""), "cutlass_fmha"),
        ("fwd_bwd", ("fa3F@pip_pkg", "fa2B@2.8.3"), "fa3|fa2"),
        ("fwd_bwd", ("fa2F@2.8.3", "fa2B@2.8.3"), "fa2"),
    ],
)
def test_the_expected_family_is_the_operator_that_xformers_dispatches_to(
    monkeypatch, tmp_path, mode, operators, family
):
    dispatch = (
        f"from types import SimpleNamespace\n"
        f"_dispatch_fw = lambda inputs, needs_gradient: SimpleNamespace(NAME={operators[0]!r})\n"
        f"_dispatch_bw = lambda inputs, packed: SimpleNamespace(NAME={operators[1]!r})\n"
    )
    case = attention_lib.case_from({**attention.PARAMS, **SMALL, "impl": "xformers", "mode": mode, "kv_heads": 2})
    with xformers_with(dispatch, tmp_path, monkeypatch):
        assert implementations.xformers_family(case) == family


@pytest.mark.parametrize(
    "dispatch",
    [
        "",
        "_dispatch_fw = lambda inputs: None",
        "def _dispatch_fw(inputs, needs_gradient): raise NotImplementedError('No operator found')",
    ],
    ids=["no such function", "other parameters", "no operator"],
)
def test_xformers_whose_dispatch_gives_no_operator_expects_any_of_them(dispatch, tmp_path, monkeypatch):
    case = attention_lib.case_from({**attention.PARAMS, **SMALL, "impl": "xformers", "mode": "fwd"})
    with xformers_with(dispatch, tmp_path, monkeypatch):
        assert implementations.xformers_family(case) == "cutlass_fmha|fa2|fa3"


def test_xformers_without_an_answer_expects_any_of_its_operators(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(implementations.importlib, "import_module", missing)
    assert (
        implementations.xformers_family(attention_lib.case_from({**attention.PARAMS, **SMALL}))
        == "cutlass_fmha|fa2|fa3"
    )
