"""CogVideoX: weights from a folder, and what cannot run here or anywhere.

Where a test needs what only a GPU machine has, it replaces that one thing and says so.
"""

from dataclasses import replace
from pathlib import Path

import lazy
import pytest

SCRIPT = Path(__file__).parents[1] / "workloads" / "cogvideox.py"
cog = lazy.workload(SCRIPT)
model = room = lazy.Lazy(lambda: cog.cogvideox_model)

TINY = {"size": "tiny", "frames": 9, "height": 32, "width": 48, "dtype": "fp32", "impl": "sdpa_math"}

pytestmark = [lazy.needs("torch", "diffusers"), pytest.mark.usefixtures("on_the_cpu")]


# --- weights ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder as Hugging Face stores a model, of the tiny size."""
    folder = tmp_path_factory.mktemp("weights")
    setting = replace(cog.parse_params({**TINY, "what": "end_to_end", "seed": 5}), vae_tiling=False)
    for part in (model.transformer, model.vae, model.scheduler):
        part(setting).save_pretrained(folder / part.__name__)
    return folder


@pytest.mark.slow
def test_weights_come_from_a_folder(stored):
    """They equal the random weights stored there, so only the seeds of the prompt and the noise differ."""
    params = {**TINY, "what": "end_to_end", "steps": 2, "seed": 5}
    assert cog.available({**params, "weights": str(stored)}) is None
    assert cog.build({**params, "weights": str(stored)})().equal(cog.build(params)())


@pytest.mark.slow
def test_a_folder_that_does_not_fit_is_named_with_the_command_that_gets_one(stored, tmp_path):
    lacking = cog.available({**TINY, "weights": str(tmp_path)})
    assert lacking.startswith(
        f"weights: {tmp_path} cannot be used: there is no transformer/config.json in it. Get them"
    )
    assert "hf download THUDM/CogVideoX-2b" in lacking
    for part in ("transformer", "scheduler"):
        (tmp_path / part).symlink_to(stored / part)
    assert cog.available({**TINY, "weights": str(tmp_path)}) is None
    assert "vae/config.json" in cog.available({**TINY, "weights": str(tmp_path), "what": "end_to_end"})
    other = room.mismatch(cog.parse_params({"weights": str(tmp_path)}))
    assert other == "its transformer is not 2b: num_layers is 2"


# --- what cannot run -------------------------------------------------------------------------------------------------


def test_without_diffusers_the_command_that_gets_it_is_named(monkeypatch):
    monkeypatch.setattr(room.importlib.util, "find_spec", lambda name: None)
    assert cog.available(TINY) == "diffusers is not installed. Install it: pip install diffusers."


@pytest.mark.slow
def test_the_2b_model_asks_for_a_gpu():
    assert (
        cog.available({}) == "2b needs a GPU, and torch sees none. Run it where there is one, or use size: tiny here."
    )


def test_what_attention_says_is_passed_on():
    assert cog.available(TINY) is None
    assert cog.available({**TINY, "impl": "fa2"}) == "fa2 does not take fp32. Use dtype: fp16 or bf16."
    assert cog.expects(TINY) == ""


def test_a_model_that_cannot_fit_is_not_tried(monkeypatch):
    monkeypatch.setattr(room.requirements, "memory_bytes", lambda device: 24 * 2**30)
    assert room.missing_memory(cog.parse_params({})) is None
    # Scores of 60 heads over 17776 tokens, twice, in 2 bytes
    assert room.missing_memory(cog.parse_params({"impl": "sdpa_math"})).startswith(
        "2b with 17776 tokens and sdpa_math needs at least 74 GiB, and this machine has 24 GiB."
    )
