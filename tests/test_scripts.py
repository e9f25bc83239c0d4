"""What is known about a workload's file before it runs."""

import pytest

from profpipe import plugins
from profpipe.plugins import declared_params

WORKLOADS = list(plugins.files("workloads", "*.py"))


@pytest.mark.parametrize("path", WORKLOADS, ids=[path.stem for path in WORKLOADS])
def test_a_shipped_workloads_parameters_are_read_without_importing_torch(path):
    pytest.importorskip("torch", reason="to compare them, the workload is imported")
    assert declared_params(path) == plugins.load_module(path).PARAMS


def test_a_file_without_parameters_declares_none(tmp_path):
    script = tmp_path / "mine.py"
    script.write_text("def build(params):\n    PARAMS = {'n': 1}\n")
    assert declared_params(script) is None
    script.write_text("PARAMS: dict = {'n': 1}\n")
    assert declared_params(script) == {"n": 1}
    script.write_text("PARAMS = ['n']\n")
    with pytest.raises(ValueError, match="not a mapping"):
        declared_params(script)
