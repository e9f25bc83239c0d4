"""CogVideoX with its attention swapped: beside diffusers' own processor and loop, its formulas by what torch counts.

These run on a CPU with a model of two layers. Where a test needs what only a GPU machine has, it replaces that one
thing and says so.
"""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import lazy
import pytest

torch = lazy.module("torch")
diffusers = lazy.module("diffusers")

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "workloads" / "cogvideox.py"
cog = lazy.workload(SCRIPT)
model = lazy.Lazy(lambda: cog.cogvideox_model)

#: 3 x 2 x 3 tokens of the video and 16 of the prompt.
TINY = {"size": "tiny", "frames": 9, "height": 32, "width": 48, "dtype": "fp32", "impl": "sdpa_math"}

pytestmark = [lazy.needs("torch", "diffusers"), pytest.mark.usefixtures("on_the_cpu")]


@pytest.fixture
def opened(monkeypatch):
    """Paths of the ranges in the order in which they are opened."""
    seen: list[str] = []
    around: list[str] = []

    @contextmanager
    def recording(name):
        around.append(name)
        seen.append(" > ".join(around))
        yield
        around.pop()

    monkeypatch.setattr(cog, "annotate", recording)
    return seen


def _model(params):
    setting = cog.parse_params(params)
    return cog._Model(setting, model.transformer(setting), nullcontext)


def _heads_last(q, k, v):
    """What flash-attn's interface is, by torch."""
    heads_first = (tensor.transpose(1, 2) for tensor in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(*heads_first).transpose(1, 2)


@pytest.fixture
def package(monkeypatch):
    """A stand-in for flash-attn, which runs on no CPU, under the name fa2; what it was called with."""
    calls: list[tuple[Any, ...]] = []

    def call(*tensors):
        calls.append(tensors)
        return _heads_last(*tensors)

    row = replace(cog.implementations.IMPLEMENTATIONS["fa2"], prepare=lambda setting: call)
    monkeypatch.setitem(cog.implementations.IMPLEMENTATIONS, "fa2", row)
    return calls


# --- the attention that is swapped in --------------------------------------------------------------------------------


@pytest.mark.parametrize("impl", ["sdpa_math", "sdpa_flash", "fa2"])
def test_the_model_with_swapped_attention_makes_the_same_prediction(impl, package):
    """fa2 is the stand-in."""
    swapped = _model({**TINY, "impl": impl})
    stock = model.transformer(cog.parse_params(TINY))
    assert {type(one).__name__ for one in stock.attn_processors.values()} == {"CogVideoXAttnProcessor2_0"}
    assert {type(one).__name__ for one in swapped._transformer.attn_processors.values()} == {"SwappedAttention"}
    predicted = swapped.step()
    swapped._transformer = stock
    torch.testing.assert_close(predicted, swapped.step(), atol=1e-6, rtol=1e-5)
    assert len(package) == (2 if impl == "fa2" else 0)


def test_an_implementation_gets_views_in_its_own_order_of_axes(package):
    _model({**TINY, "impl": "fa2"}).step()
    for q, k, v in package:
        assert q.shape == k.shape == v.shape == (2, 34, 2, 64)
        # q and k as their norms left them, with the heads outside; v as its projection did, and nothing copied.
        assert q.stride() == k.stride() == (2 * 34 * 64, 64, 34 * 64, 1)
        assert v.is_contiguous()


def test_a_mask_or_rotary_embeddings_are_refused_rather_than_ignored():
    attention = model.SwappedAttention(_heads_last)
    with pytest.raises(ValueError, match="neither a mask nor rotary embeddings"):
        attention(None, None, None, image_rotary_emb=(1, 2))


# --- the model and its loop ------------------------------------------------------------------------------------------


def test_the_2b_model_is_the_published_one():
    """1.7 billion parameters; 17776 tokens; 30 layers in 50 steps."""
    facts = cog.facts({"what": "end_to_end"})
    assert facts == {"parameters": (1_693_783_872.0, "1"), "tokens": (17_776.0, "1"), "attention_calls": (1_500.0, "1")}
    setting = cog.parse_params({})
    assert setting.latent == (1, 13, 16, 60, 90)
    assert (setting.attention.batch, setting.attention.heads, setting.attention.head_dim) == (2, 30, 64)


def test_diffusers_takes_the_same_for_its_defaults():
    with torch.device("meta"):
        made = diffusers.CogVideoXTransformer3DModel(**model.architecture(cog.parse_params({})))
        stock = diffusers.CogVideoXTransformer3DModel()
    names = [name for name in stock.config if not name.startswith("_")]
    assert {name: made.config[name] for name in names} == {name: stock.config[name] for name in names}
    assert not stock.config.use_rotary_positional_embeddings


def test_the_scheduler_is_set_to_the_steps_of_the_case():
    scheduler = model.scheduler(cog.parse_params({**TINY, "what": "denoise", "steps": 4}))
    assert scheduler.timesteps.tolist() == [999, 749, 499, 249]
    assert scheduler.config.prediction_type == "v_prediction"


def test_the_loop_is_the_one_of_diffusers():
    """Its pipeline imports transformers, which nothing else here needs."""
    pytest.importorskip("transformers", reason="diffusers' pipeline needs the package transformers")
    setting = cog.parse_params({**TINY, "what": "end_to_end", "steps": 3})
    ours = _model({**TINY, "what": "end_to_end", "steps": 3})
    parts = {
        "transformer": model.transformer(setting),
        "vae": model.vae(setting),
        "scheduler": model.scheduler(setting),
    }
    pipeline = diffusers.CogVideoXPipeline(tokenizer=None, text_encoder=None, **parts)
    without, prompt = ours._prompts.chunk(2)
    given = {
        "prompt_embeds": prompt,
        "negative_prompt_embeds": without,
        "latents": ours._noise,
        "max_sequence_length": 16,
    }
    size = {"num_frames": 9, "height": 32, "width": 48, "num_inference_steps": 3, "guidance_scale": 6.0}
    theirs = pipeline(**given, **size, output_type="pt").frames
    video = cog.build({**TINY, "what": "end_to_end", "steps": 3})()
    torch.testing.assert_close((video / 2 + 0.5).clamp(0, 1).transpose(1, 2), theirs, atol=1e-5, rtol=1e-5)


def test_a_step_a_denoising_and_a_video_have_their_shapes():
    shapes = {what: cog.build({**TINY, "what": what, "steps": 2})().shape for what in cog.WHAT}
    assert shapes == {"step": (2, 3, 4, 4, 6), "denoise": (1, 3, 4, 4, 6), "end_to_end": (1, 3, 9, 32, 48)}
    assert cog.build({**TINY, "guidance": False})().shape == (1, 3, 4, 4, 6)


def test_iterations_begin_anew_and_follow_from_the_seed():
    run = cog.build({**TINY, "what": "denoise", "steps": 2})
    first = run()
    assert first.isfinite().all()
    assert first.equal(run())
    assert not first.allclose(cog.build({**TINY, "what": "denoise", "steps": 2, "seed": 1})())


def test_the_guidance_moves_away_from_what_is_predicted_without_the_prompt():
    params = {**TINY, "what": "denoise", "steps": 1}
    seen: list[Any] = []
    made = _model(params)
    made._scheduler.step = lambda noise, time, latents, return_dict: seen.append(noise) or (latents,)
    made.denoise()
    without, with_prompt = made.step().chunk(2)
    torch.testing.assert_close(seen[0], without + 6 * (with_prompt - without))


# --- ranges ----------------------------------------------------------------------------------------------------------


def test_denoising_step_attention_and_decoding_have_nested_ranges(opened):
    run = cog.build({**TINY, "what": "end_to_end", "steps": 2})
    assert opened == []
    run()
    step = ["denoising > transformer", *["denoising > transformer > attention"] * 2, "denoising > scheduler"]
    assert opened == ["denoising", *step, *step, "decode"]


def test_a_single_step_has_the_transformer_alone(opened):
    cog.build(TINY)()
    assert opened == ["transformer", *["transformer > attention"] * 2]
    assert list(cog.phase_work(TINY)) == ["transformer > attention"]


# --- formulas --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("guidance", [True, False])
def test_flops_of_a_step_are_those_that_torch_counts(guidance):
    counting = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode(display=False)
    params = {**TINY, "guidance": guidance}
    run = cog.build(params)
    with counting:
        run()
    assert counting.get_total_flops() == cog.flops(params)


def test_attention_in_other_data_types_than_the_models_is_counted_apart():
    """SageAttention 1: QK in int8, PV in fp16, here in a model in fp32 and in one in fp16."""
    attention = 4 * 2 * 2 * 34**2 * 128
    rest = cog.flops(TINY) - attention
    found = cog.flops({**TINY, "impl": "sage1"})
    assert found == {"int8": attention / 2, "fp16": attention / 2, "fp32": rest}
    found = cog.flops({**TINY, "impl": "sage1", "dtype": "fp16"})
    assert found == {"int8": attention / 2, "fp16": attention / 2 + rest}
    (phase,) = cog.phase_work({**TINY, "impl": "sage1"}).values()
    assert phase["flops"] == {"int8": attention / 2, "fp16": attention / 2}


def test_steps_multiply_the_work_of_one():
    step, loop = ({**TINY, "what": what, "steps": 7} for what in ("step", "denoise"))
    assert cog.flops(loop) == 7 * cog.flops(step)
    (one,), (all_of_them,) = (cog.phase_work(params).values() for params in (step, loop))
    # 2 layers, batch 2, 34 tokens of 128, 4 bytes
    assert one == {"flops": 4 * 2 * 2 * 34**2 * 128, "bytes_moved": 4 * 2 * 2 * 34 * 128 * 4}
    assert all_of_them == {name: 7 * value for name, value in one.items()}
    assert cog.facts(loop)["attention_calls"] == (14.0, "1")


# --- check -----------------------------------------------------------------------------------------------------------


def test_fewer_bits_give_a_larger_error():
    fp32, fp16, bf16 = (cog.check({**TINY, "dtype": dtype}) for dtype in ("fp32", "fp16", "bf16"))
    assert list(fp32) == [*cog.accuracy.MEASURES, "prediction_rel_l1", "prediction_cosine"]
    for name in ("error_rel_l1", "prediction_rel_l1"):
        assert 0 < fp32[name] < 1e-5 < fp16[name] < bf16[name] < 0.05
    assert 0.999 < bf16["cosine"] < fp16["cosine"] <= 1


@pytest.mark.parametrize("checked_rows", [5, 1024])
def test_the_error_of_a_wrong_attention_is_larger_than_that_of_the_prediction(monkeypatch, checked_rows):
    """The stand-in leaves out half of the keys."""

    def half(setting):
        return lambda q, k, v: _heads_last(q, k[:, ::2], v[:, ::2])

    row = replace(cog.implementations.IMPLEMENTATIONS["fa2"], prepare=half)
    monkeypatch.setitem(cog.implementations.IMPLEMENTATIONS, "fa2", row)
    monkeypatch.setattr(cog, "CHECKED_ROWS", checked_rows)
    found = cog.check({**TINY, "impl": "fa2"})
    assert found["error_rel_l1"] > 0.2 > 0.1 > found["prediction_rel_l1"] > 1e-4
    assert found["cosine"] < 0.97


def test_an_implementation_that_writes_into_its_inputs_is_compared_with_the_original_inputs(monkeypatch):
    """As SageAttention 1 does; by a constant, which changes no softmax."""

    def centring(setting):
        def call(q, k, v):
            k -= k.mean(1, keepdim=True)
            return _heads_last(q, k, v)

        return call

    row = replace(cog.implementations.IMPLEMENTATIONS["fa2"], prepare=centring)
    monkeypatch.setitem(cog.implementations.IMPLEMENTATIONS, "fa2", row)
    assert cog.check({**TINY, "impl": "fa2"})["error_rel_l1"] < 1e-5


# --- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that dynamo captures; they are run as they are, so that no compiler is needed."""
    captured: list[Any] = []
    compiled = torch.compile

    def keep(graph, inputs):
        captured.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model, **given: compiled(model, backend=keep, **given))
    return captured


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["sdpa_math", pytest.param("sdpa_flash", marks=pytest.mark.exhaustive)])
def test_with_sdpa_the_compiled_model_is_one_graph(impl, graphs, opened):
    params = {**TINY, "impl": impl}
    compiled = cog.build({**params, "compile": True})()
    assert len(graphs) == 1
    assert opened == ["transformer"]
    torch.testing.assert_close(compiled, cog.build(params)())
    assert cog.phase_work({**params, "compile": True}) == {}


@pytest.mark.slow
def test_a_package_is_called_between_graphs(graphs, package):
    compiled = cog.build({**TINY, "impl": "fa2", "compile": True})
    first = compiled()
    assert len(graphs) > 1
    assert len(package) == 2
    known = len(graphs)
    torch.testing.assert_close(compiled(), first)
    assert len(graphs) == known
    torch.testing.assert_close(first, cog.build(TINY)(), atol=1e-6, rtol=1e-5)
