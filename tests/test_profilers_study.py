"""The study of profilers: its setting, and its lines by profiler in a run on a CPU."""

import re
from pathlib import Path

import pytest
from program import profpipe
from report_study import read_pages

from profpipe.config import loader
from profpipe.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
PIPELINE = ROOT / "pipelines" / "profilers.yaml"


def test_its_setting_is_the_published_one():
    pipeline = loader.load_pipeline(PIPELINE)
    for workload in pipeline.workloads.values():
        assert (workload.warmup, workload.repeats) == (10, 100)
        assert list(workload.profilers) == ["plain", "nsys", "ncu", "torch"]
        assert {**workload.params} | {"qheads": 32, "kvheads": 32, "head_dim": 128} == {**workload.params}
    lengths, sequences = (pipeline.workloads[name].matrix["seqlens"] for name in ("length", "sequences"))
    assert list(map(int, lengths)) == [2**n for n in range(7, 15)]
    assert list(sequences) == [128, *(f"{2**n}x128" for n in range(1, 7))]


def test_a_profiler_as_axis_and_as_key_is_refused(tmp_path):
    text = PIPELINE.read_text(encoding="utf-8").replace(
        "    columns: profiler\n", "    columns: profiler\n    profiler: nsys\n"
    )
    (tmp_path / "profilers.yaml").write_text(text)
    with pytest.raises(ConfigError) as refused:
        loader.load_pipeline(tmp_path / "profilers.yaml")
    assert "names one profiler, and 'profiler' is among the axes" in str(refused.value)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_it_draws_a_line_for_each_profiler_on_a_cpu(tmp_path):
    pytest.importorskip("torch")
    small = {
        "IMPLS": "sdpa_loop",
        "PROFILERS": "plain,torch",
        "LENGTHS": "64;128",
        "SEQLENS": "2x64;4x64",
        "QHEADS": "2",
    }
    small |= {
        "QHEADS": "2",
        "KVHEADS": "2",
        "HEADDIM": "16",
        "DTYPE": "fp32",
        "REPEATS": "6",
        "WARMUP": "1",
        "BUDGET_S": "0.1",
    }
    profpipe(tmp_path, "run", PIPELINE, "--out", tmp_path, **small)
    pages = read_pages(tmp_path / "latest")
    assert "| tokens | plain | torch |" in pages and "| sequences | plain | torch |" in pages
    assert len(set(re.findall(r"plots/study-by-[\w.-]+", pages))) == 6
