"""Which library emits the ranges. ROCm's libraries are missing here; a stand-in records which one is loaded."""

from types import SimpleNamespace

import pytest

from profpipe import ranges


@pytest.fixture
def loaded(monkeypatch):
    """The libraries that were tried; only the last of them is there."""
    tried: list[str] = []

    def load(name):
        tried.append(name)
        if name != "libroctx64.so":
            raise OSError(name)
        return SimpleNamespace(roctxRangePushA=lambda text: 0, roctxRangePop=lambda: 0)

    monkeypatch.setattr(ranges.ctypes, "CDLL", load)
    return tried


def test_rocprofv3_gets_the_ranges_of_its_library_if_it_is_installed(loaded):
    assert ranges.use("rocprof") == "libroctx64.so"
    assert loaded[0] == "librocprofiler-sdk-roctx.so.1"


def test_older_generations_get_the_ranges_of_the_library_that_they_see(loaded, monkeypatch):
    monkeypatch.setenv("PROFPIPE_ROCTX", "libroctx64")
    assert ranges.use("rocprof") == "libroctx64.so"
    assert all(name.startswith("libroctx64") for name in loaded)


def test_without_a_profiler_a_range_costs_nothing():
    assert ranges.use("plain") == "none"
    with ranges.annotate("forward"):
        pass


def test_a_name_that_torch_keeps_is_notencode_name_otherwise():
    assert ranges.encode_name("forward: q @ k, 50% {a|b}~'c'") == "forward: q @ k, 50% {a|b}~'c'"
