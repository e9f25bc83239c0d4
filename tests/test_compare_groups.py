"""Groups of runs: the exact rank-sum test, the verdicts on unpaired processes and their errors, the command."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from program import WITHOUT_TORCH, profpipe
from test_verdict import load_benchmark

from profpipe import cli
from profpipe.analysis import rank_sum
from profpipe.analysis.compare_groups import (
    GroupChange,
    Hindrance,
    Side,
    compare_groups,
    judge,
)
from profpipe.analysis.verdict import Gate
from profpipe.report import comparison_text
from profpipe.results import schema, store
from profpipe.results.manifest import DeviceEntry, Gpu, JobEntry, Machine, Manifest
from profpipe.results.noise import Noise, Source, Spread
from profpipe.results.schema import CASES, METRICS, Tables, Verdict

simulation = load_benchmark()


# --- the test --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "statistic", "two_sided"),
    # Mann and Whitney, Ann. Math. Stat. 18 (1947) 50, table I: P(U <= u), doubled.
    [((3, 3), 0, 0.100), ((4, 4), 1, 0.058), ((5, 5), 2, 0.032), ((5, 5), 0, 0.008), ((6, 6), 5, 0.042),
     ((7, 7), 4, 0.006), ((8, 8), 13, 0.050), ((3, 8), 2, 0.048)],
)  # fmt: skip
def test_p_values_are_those_of_the_printed_table(sizes: tuple[int, int], statistic: int, two_sided: float) -> None:
    count_a, count_b = sizes
    # U counts the pairs in which B is larger: move one value of B up by as many places.
    b = [float(-10 * i) for i in range(1, count_b + 1)]
    a = [float(i) for i in range(count_a)]
    for left in range(count_b):
        steps = min(count_a, statistic - left * count_a)
        if steps > 0:
            b[left] = steps - 0.5
    assert rank_sum.two_sided_p(a, b) == pytest.approx(two_sided, abs=0.0011)


@pytest.mark.parametrize("sizes", [(2, 3), (5, 5), (4, 9), (15, 15), (40, 40)])
def test_p_values_are_those_of_scipy(sizes: tuple[int, int]) -> None:
    stats = pytest.importorskip("scipy.stats")
    for seed in range(10):
        rng = random.Random(seed)
        a, b = ([rng.gauss(centre, 1) for _ in range(n)] for n, centre in zip(sizes, (0, 0.4), strict=True))
        for ours, alternative in zip(rank_sum.p_values(a, b), ("less", "greater"), strict=True):
            exact = stats.mannwhitneyu(b, a, alternative=alternative, method="exact").pvalue
            assert ours == pytest.approx(exact, rel=1e-9)


def test_equal_values_share_their_rank_and_the_p_value_is_that_of_all_choices() -> None:
    a, b = [1.0, 2.0, 2.0, 3.0, 5.0], [2.0, 3.0, 3.0, 4.0, 4.0, 9.0]
    values = a + b
    ranks = [sum(v < value for v in values) + (values.count(value) + 1) / 2 for value in values]
    sums = [sum(ranks[i] for i in chosen) for chosen in itertools.combinations(range(11), 6)]
    observed = sum(ranks[5:])
    below, above = (sum(map(rule, sums)) / len(sums) for rule in (observed.__ge__, observed.__le__))
    assert rank_sum.p_values(a, b) == pytest.approx((below, above))


def test_the_interval_holds_the_shifts_that_the_test_does_not_reject() -> None:
    rng = random.Random(3)
    a, b = ([rng.gauss(0, 1) for _ in range(n)] for n in (7, 9))
    low, high = rank_sum.interval(a, b, 0.99) or (0.0, 0.0)
    for shift, is_inside in ((low - 1e-6, False), (low + 1e-6, True), (high - 1e-6, True), (high + 1e-6, False)):
        assert (rank_sum.two_sided_p(a, [value - shift for value in b]) > 0.01) is is_inside
    assert low <= rank_sum.shift(a, b) <= high
    assert rank_sum.interval(a[:3], b[:3], 0.99) is None


# --- the verdict -----------------------------------------------------------------------------------------------------


def side(*runs: Sequence[float]) -> Side:
    return Side(tuple(tuple(run) for run in runs))


def singles(*times: float) -> Side:
    return side(*((time,) for time in times))


CALM = (100.0, 100.2, 99.9, 100.1, 99.8, 100.3)
NOISE = Noise()


def test_six_calm_runs_on_each_side_decide() -> None:
    found = {
        percent: judge("w", singles(*CALM), singles(*(t * (1 + percent / 100) for t in CALM)), 0.0).verdict
        for percent in (-5, 0, 0.5, 3)
    }
    assert found == {-5: Verdict.FASTER, 0: Verdict.SAME, 0.5: Verdict.SAME, 3: Verdict.SLOWER}


def test_five_runs_a_side_never_decide_a_difference_and_may_decide_that_there_is_none() -> None:
    few = judge("w", singles(*CALM[:5]), singles(*(2 * t for t in CALM[:5])), 0.0)
    assert (few.verdict, few.hindrance) == (Verdict.INCONCLUSIVE, Hindrance.TOO_FEW_PROCESSES)
    assert few.p == pytest.approx(2 / math.comb(10, 5)) and few.ci_low is not None
    assert judge("w", singles(*CALM[:5]), singles(*CALM[1:]), 0.0).verdict is Verdict.SAME


@pytest.mark.parametrize("imbalance", [-1.0, 0.6, 1.0])
def test_runs_in_blocks_give_no_verdict_however_far_apart(imbalance: float) -> None:
    found = judge("w", singles(*CALM), singles(*(2 * t for t in CALM)), imbalance)
    assert (found.verdict, found.hindrance) == (Verdict.INCONCLUSIVE, Hindrance.NOT_INTERLEAVED)
    assert judge("w", singles(*CALM), singles(*CALM), imbalance).verdict is Verdict.INCONCLUSIVE


def test_runs_in_blocks_count_as_two_runs_where_the_spread_between_runs_is_known() -> None:
    known = Noise(between=Spread(0.01, 8.0, {Source.RUNS: 10}))
    verdicts = {
        percent: judge("w", singles(*CALM), singles(*(t * (1 + percent / 100) for t in CALM)), 1.0, known).verdict
        for percent in (2, 6)
    }
    assert verdicts == {2: Verdict.INCONCLUSIVE, 6: Verdict.SLOWER}


def test_runs_are_the_same_only_where_the_shift_and_the_spread_between_runs_fit_into_the_floor_together() -> None:
    # Student's t puts the shift of two runs within 0.52 %, the floor is 1 %.
    known, times = Noise(between=Spread(0.003, 20.0, {Source.RUNS: 24})), [100 + i / 100 for i in range(6)]
    verdicts = {
        percent: judge("w", singles(*times), singles(*(t * (1 + percent / 100) for t in times)), 1.0, known).verdict
        for percent in (0.4, 0.7)
    }
    assert verdicts == {0.4: Verdict.SAME, 0.7: Verdict.INCONCLUSIVE}


def test_processes_of_one_run_count_only_as_far_as_runs_agree() -> None:
    """Three runs of six processes each. The runs of B differ by as much as the sides do."""
    near = [tuple(t * factor for t in CALM) for factor in (1.0, 1.001, 0.999)]
    agree = [tuple(t * factor for t in CALM) for factor in (1.03, 1.031, 1.029)]
    vary = [tuple(t * factor for t in CALM) for factor in (1.02, 1.09, 1.03)]
    assert judge("w", side(*near), side(*agree), 0.0).verdict is Verdict.SLOWER
    found = judge("w", side(*near), side(*vary), 0.0)
    assert found.p < 1e-6 and found.verdict is Verdict.INCONCLUSIVE


def test_one_run_a_side_needs_a_known_spread_between_runs() -> None:
    a, b = side(CALM), side(tuple(1.1 * t for t in CALM))
    assert judge("w", a, b, 0.0).hindrance is Hindrance.ONE_RUN_A_SIDE
    known = Noise(between=Spread(0.01, 20.0, {Source.RUNS: 24}))
    assert judge("w", a, b, 0.0, known).verdict is Verdict.SLOWER


def test_the_floor_is_the_known_spread_where_that_is_more_than_one_percent() -> None:
    b = singles(*(1.03 * t for t in CALM))
    found = judge("w", singles(*CALM), b, 0.0, Noise(within=Spread(0.05, 20.0, {Source.PAIRS: 54})))
    assert (found.floor, found.verdict) == (0.05, Verdict.SAME)


# --- how often a verdict is wrong ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("drift", [pytest.param(0.0, marks=pytest.mark.exhaustive), 0.01])
@pytest.mark.parametrize("name", list(simulation.DESIGNS))
def test_false_verdicts_stay_below_half_a_percent(name: str, drift: float) -> None:
    machines = [simulation.Machine(effect, drift) for effect in simulation.EFFECTS.values()]
    rates = [simulation.false_of_groups(simulation.DESIGNS[name], machine, 300, seed=7) for machine in machines]
    assert statistics.fmean(rates) < 0.005


@pytest.mark.slow
def test_blocks_would_cry_wolf_under_drift_without_the_rule_of_turns() -> None:
    rng, found = random.Random(1), 0
    machine = simulation.Machine(simulation.EFFECTS["bimodal, sd 0.5 %"], drift=0.03)
    for _ in range(200):
        times = [math.exp(log) for log in machine.log_times([False] * 20, 0.0, rng)]
        a, b = singles(*times[:10]), singles(*times[10:])
        found += judge("w", a, b, 0.0).verdict is Verdict.SLOWER
        assert judge("w", a, b, 1.0).verdict is Verdict.INCONCLUSIVE
    assert found > 100


# --- the gate --------------------------------------------------------------------------------------------------------


def gate_of(percent: float, change: float, imbalance: float = 0.0, count: int = 6) -> Gate:
    times = [t * (1 + change / 100) for t in CALM[:count]]
    return judge("w", singles(*CALM[:count]), singles(*times), imbalance, NOISE, percent).judge_gate(percent)


def test_a_gate_fails_passes_or_is_undecided() -> None:
    assert gate_of(2, 5) is Gate.FAILED and gate_of(7, 5) is Gate.PASSED and gate_of(2, 0) is Gate.PASSED
    assert gate_of(2, -5) is Gate.PASSED
    assert gate_of(2, 5, imbalance=1.0) is Gate.UNDECIDED and gate_of(2, 0, imbalance=1.0) is Gate.UNDECIDED
    # Three processes cannot show a difference; below the gate the one-sided test at 5 % decides with three.
    assert gate_of(2, 5, count=3) is Gate.UNDECIDED and gate_of(2, 0, count=3) is Gate.PASSED


def test_a_case_that_is_the_same_within_a_wide_floor_does_not_pass_a_narrow_gate() -> None:
    wide, b = Noise(within=Spread(0.05, 20.0, {Source.PAIRS: 54})), singles(*(1.03 * t for t in CALM))
    found = {gate: judge("w", singles(*CALM), b, 0.0, wide, gate) for gate in (2, 6)}
    assert {change.verdict for change in found.values()} == {Verdict.SAME}
    assert {gate: change.judge_gate(gate) for gate, change in found.items()} == {2: Gate.UNDECIDED, 6: Gate.PASSED}


# --- the command -----------------------------------------------------------------------------------------------------


def write_run(folder: Path, day: int, times: dict[str, float], status: str = "ok", **params: str) -> str:
    """Write a run with these times in ns, and return its folder."""
    key = {"run": folder.name, "workload": "w", "profiler": "plain"}
    numbers = [{**key, "case": case, "metric": "time", "value": time, "unit": "ns"} for case, time in times.items()]
    cases = [{**key, "case": case, "status": status, "params": json.dumps(params)} for case in times]
    data = Tables(cases=schema.frame(CASES, cases), metrics=schema.frame(METRICS, numbers))
    folder.mkdir()
    store.save(folder, data, Manifest(name="study", started=f"2026-11-{day:02d}T00:00:00+00:00", ended="x"))
    return str(folder)


@pytest.fixture
def groups(tmp_path: Path) -> tuple[list[str], list[str]]:
    """Six runs of each side that took turns: n=1 takes 5 % longer on B, n=2 the same."""
    a, b = [], []
    for number, time in enumerate(CALM):
        a.append(write_run(tmp_path / f"a{number}", 2 * number + 1, {"n=1": 1000 * time, "n=2": 2000 * time}))
        b.append(write_run(tmp_path / f"b{number}", 2 * number + 2, {"n=1": 1050 * time, "n=2": 2000 * time}))
    return a, b


def test_groups_are_compared_case_by_case(groups: tuple[list[str], list[str]], capsys: pytest.CaptureFixture) -> None:
    a, b = groups
    assert cli.main(["compare", *a, "--", *b]) == 0
    first, head, slower, same = capsys.readouterr().out.splitlines()
    assert first == "A: 6 runs, B: 6 runs" and head.split()[:4] == ["case", "A", "us", "B"]
    assert slower.startswith("w/n=1") and "+5.0 %" in slower and "6 + 6  slower (floor 1.0 %)" in slower
    assert same.startswith("w/n=2") and "+0.0 %" in same and "same (floor 1.0 %)" in same


@pytest.mark.slow
def test_the_gate_of_groups_ends_with_the_codes_of_ab(
    groups: tuple[list[str], list[str]], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    a, b = groups
    # Options may stand before or after the runs of B.
    assert cli.main(["compare", *a, "--", *b, "--gate", "2"]) == 4
    assert "1 case is more than 2 % slower: w/n=1" in capsys.readouterr().err
    assert cli.main(["compare", "--gate", "10", *a, "--", *b]) == 0
    assert "no case is more than 10 % slower" in capsys.readouterr().out
    # The first three of A and the last three of B: blocks.
    assert cli.main(["compare", *a[:3], "--", *b[3:], "--gate", "2"]) == 5
    captured = capsys.readouterr()
    assert "All runs of A came before those of B." in captured.out and "inconclusive" in captured.out
    assert "the gate is undecided: 2 cases may be more than 2 % slower" in captured.err
    failed = write_run(tmp_path / "failed", 14, {"n=1": 1000.0, "n=2": 2000.0}, status="failed")
    assert cli.main(["compare", *a, "--", *b, failed, "--gate", "10"]) == 4
    assert "2 cases had a time in A and did not end well in B" in capsys.readouterr().err


def test_too_few_runs_are_named_with_the_smallest_p_that_they_can_have(
    groups: tuple[list[str], list[str]], capsys: pytest.CaptureFixture
) -> None:
    a, b = groups
    assert cli.main(["compare", *a[:3], "--", *b[:3]]) == 0
    assert "3 and 3 processes cannot make a case faster or slower: their smallest p is 0.1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a0"], "needs two runs, and 1 is given. Put -- between the runs"),
        (["a0", "a1", "a2"], "needs two runs, and 3 are given"),
        (["a0", "--"], "has no run after '--'"),
        (["a0", "a1", "--", "a0"], "a0 is given twice"),
        (["a0", "--", "missing"], "is not the folder of a run"),
    ],
)
def test_wrong_groups_are_explained(
    groups: object, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["compare", *words, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_a_case_with_other_parameters_in_one_run_is_not_compared(tmp_path: Path) -> None:
    runs = [
        store.load(Path(write_run(tmp_path / f"r{day}", day, {"c": 100.0}, x="new" if day == 3 else "old")))
        for day in range(1, 5)
    ]
    found = compare_groups(runs[:2], runs[2:])
    assert not found.changes and [case.differences for case in found.changed_params] == [{"x": ("old", "new")}]
    assert "Not compared, because parameters differ (1 case; in A and in B):" in comparison_text.text(found)


@pytest.mark.slow
@pytest.mark.parametrize("is_recorded", [True, False])
def test_cases_on_unlike_gpus_get_no_verdict(groups: tuple[list[str], list[str]], is_recorded: bool) -> None:
    def on(path: str, gpu: str) -> tuple[Tables, Manifest]:
        """Load a run in which n=1 ran on this GPU, by the record of its job or as the only one of the machine."""
        data, run = store.load(Path(path))
        jobs = (
            JobEntry("w", "plain", ("n=1",), devices=(DeviceEntry(gpu),)),
            JobEntry("w", "plain", ("n=2",), devices=(DeviceEntry("A100"),)),
        )
        known = Machine(gpus=tuple(map(Gpu, ("A100", "H200") if is_recorded else (gpu,))))
        return data, replace(run, machine=known, jobs=jobs if is_recorded else jobs[1:])

    a, b = groups
    runs_a, runs_b = [on(path, "A100") for path in a], [on(b[0], "H200"), *(on(path, "A100") for path in b[1:])]
    found = compare_groups(runs_a, runs_b, gate=10)
    assert {change.name: (change.verdict, change.hindrance, change.judge_gate(10)) for change in found.changes} == {
        "w/n=1": (Verdict.INCONCLUSIVE, Hindrance.UNLIKE_GPUS, Gate.UNDECIDED),
        "w/n=2": (Verdict.SAME, None, Gate.PASSED),
    }
    assert "No verdict where runs used different models of GPUs: w/n=1. Compare" in comparison_text.text(found)
    assert compare_groups(runs_a, [on(path, "A100") for path in b]).changes[0].verdict is Verdict.SLOWER


@pytest.mark.slow
@pytest.mark.exhaustive
def test_runs_of_a_program_that_took_turns_are_compared_by_their_processes(tmp_path: Path) -> None:
    text = "def build(params):\n    return lambda: sum(range(params['n'] * {}))\n"
    pipeline = "version: 1\nname: {0}\nworkloads: {{w: {{script: {0}.py, profilers: [plain], matrix: {{n: [100]}},"
    for name, count in (("a", 100), ("b", 300)):
        (tmp_path / f"{name}.py").write_text(text.format(count), encoding="utf-8")
        settings = " timing: {budget_s: 0.05, rounds: 1}}}\n"
        (tmp_path / f"{name}.yaml").write_text(pipeline.format(name) + settings, encoding="utf-8")
    runs: dict[str, list[str]] = {"a": [], "b": []}
    for name in ("a", "b", "b", "a"):
        profpipe(tmp_path, "run", f"{name}.yaml", "--captures", "2", PYTHONPATH=WITHOUT_TORCH)
        runs[name].append((tmp_path / "out" / "latest").resolve().name)
    printed = profpipe(tmp_path, "compare", *runs["a"], "--", *runs["b"])
    assert "A: 2 runs, B: 2 runs" in printed and "4 + 4" in printed


def test_a_verdict_names_its_figures() -> None:
    change: GroupChange = judge("w/c", singles(*CALM), singles(*(1.05 * t for t in CALM)), 0.0)
    assert change.percent == pytest.approx(5.0) and change.ci_low is not None and change.ci_high is not None
    assert change.ci_low < change.ratio < change.ci_high and change.p == pytest.approx(2 / math.comb(12, 6))
