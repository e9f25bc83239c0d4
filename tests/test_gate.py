"""The gate of `ab` and that of `compare`: the same changes have the same result and the same exit code."""

import pytest
from pair_study import run_of, tables_of

from profpipe import cli
from profpipe.analysis import pairs
from profpipe.analysis.changes import Gate
from profpipe.analysis.compare_runs import compare_runs
from profpipe.commands import api, rendering
from profpipe.results import schema
from profpipe.results.manifest import Manifest
from profpipe.results.noise import Noise, Spread, SpreadSource
from profpipe.results.schema import CASES, METRICS, Tables

ENDED = "2026-11-20T06:00:00+00:00"
#: Runs of the same code lie 0.2 % apart.
KNOWN = {("w", "c"): Noise(between=Spread(0.002, 1e6, {SpreadSource.RUNS: 8}))}


def measure_once(percent, status="ok", flags="[]"):
    """Return the tables of a run whose case takes 1 ms and ``percent`` more; None for a case without a time."""
    key = {"workload": "w", "case": "c", "profiler": "plain"}
    cases = [{**key, "status": status, "reason": "", "params": "{}", "flags": flags}]
    times = [] if percent is None else [{**key, "metric": "time", "value": 1e6 * (1 + percent / 100), "unit": "ns"}]
    return Tables(cases=schema.frame(CASES, cases), metrics=schema.frame(METRICS, times))


def measure_pairs(percent, is_clear, status="ok", marks=""):
    """Return the tables of 8 pairs, of which those that are not clear scatter by 8 %."""
    width = 0.2 if is_clear else 4.0
    ratios = [1 + ((percent or 0) + width * (2 * i / 7 - 1)) / 100 for i in range(8)]
    sides = [("c", *mark.split()) for mark in marks.split(",") if mark]
    data = tables_of({"c": ratios}, [("c", (status, ""))], sides)
    metrics = data.metrics
    return data if percent is not None else Tables(data.cases, metrics=metrics[~metrics["subject"].str.endswith("B")])


BAD = '["inaccurate"]'


#: Arguments of `measure_once` for both sides, and of `measure_pairs`; whether the noise is known; and the answer.
@pytest.mark.parametrize(
    ("once", "in_pairs", "is_noise_known", "expected", "code"),
    [
        ([(0,), (3,)], (3, True), True, Gate.FAILED, 4),
        ([(0,), (1.5,)], (1.5, True), True, Gate.PASSED, 0),
        ([(0,), (0.1,)], (0.1, True), True, Gate.PASSED, 0),
        ([(0,), (-5,)], (-5, True), True, Gate.PASSED, 0),
        # Whether the difference is chance is not known.
        ([(0,), (3,)], (3, False), False, Gate.UNDECIDED, 5),
        ([(0,), (None,)], (None, True), True, Gate.UNDECIDED, 5),
        ([(0,), (0, "crashed")], (0, True, "crashed", "B failed"), True, Gate.FAILED, 4),
        ([(0,), (-5, "ok", BAD)], (-5, True, "ok", "B inaccurate"), True, Gate.FAILED, 4),
        ([(0, "ok", BAD), (-5, "ok", BAD)], (-5, True, "ok", "A inaccurate,B inaccurate"), True, Gate.PASSED, 0),
        (None, None, True, Gate.UNDECIDED, 5),
    ],
)
def test_ab_and_compare_judge_the_same_changes_alike(
    tmp_path, monkeypatch, once, in_pairs, is_noise_known, expected, code
):
    once = [measure_once(*side) for side in once] if once else [Tables(), Tables()]
    in_pairs = measure_pairs(*in_pairs) if in_pairs else Tables()
    run = Manifest(ended=ENDED)
    compared = compare_runs(*once, run, run, KNOWN if is_noise_known else {})
    sides = [api.Run(tmp_path, data, run) for data in once]
    monkeypatch.setattr(api, "compare", lambda *_, **__: api.Differences(compared, sides))
    gate = pairs.analyze(in_pairs, run_of(2)).gate
    assert gate is not None and gate.verdict is compared.judge_gate(2).verdict is expected
    of_compare = cli.main(["compare", "a", "b", "--gate", "2"])
    assert (of_compare, rendering.judge(tmp_path, in_pairs, run_of(2)).exit_code) == (code, code)
