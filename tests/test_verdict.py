"""The exact signed-rank test, and the verdicts on pairs of processes."""

import importlib.util
import itertools
import math
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from profpipe.analysis import verdict
from profpipe.results.schema import Verdict

ROOT = Path(__file__).resolve().parents[1]


def load_benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_verdicts", ROOT / "benchmarks" / "verdicts.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


simulation = load_benchmark()


def draw(count, centre=0.0, seed=1):
    rng = random.Random(seed)
    return [rng.gauss(centre, 1.0) for _ in range(count)]


# --- the test of signed ranks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "rank_sum", "two_sided"),
    # Hollander, Wolfe and Chicken, table A.4: P(T >= t) of n differences, doubled.
    [(5, 0, 0.062), (8, 3, 0.040), (8, 0, 0.008), (10, 8, 0.048), (10, 3, 0.010), (15, 25, 0.048)],
)
def test_p_values_are_those_of_the_printed_table(count, rank_sum, two_sided):
    negative = set()
    for rank in range(count, 0, -1):
        if rank <= rank_sum - sum(negative):
            negative.add(rank)
    differences = [-rank if rank in negative else rank for rank in range(1, count + 1)]
    assert verdict.two_sided_p(differences) == pytest.approx(two_sided, abs=0.0011)


@pytest.mark.parametrize("count", [1, 2, 5, 8, 12, 25, 40])
def test_p_values_are_those_of_scipy(count):
    stats = pytest.importorskip("scipy.stats")
    for seed in range(20):
        differences = draw(count, centre=0.3, seed=seed)
        less, greater = verdict.p_values(differences)
        for ours, alternative in ((less, "less"), (greater, "greater")):
            theirs = stats.wilcoxon(differences, alternative=alternative, method="exact").pvalue
            assert ours == pytest.approx(theirs, rel=1e-12)
        theirs = stats.wilcoxon(differences, method="exact").pvalue
        assert verdict.two_sided_p(differences) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(
    "differences", [[1, 1, -1, 2, 2, -3, 4], [0, 0, 5, -5, 5, 1], [-1, -1, -1, -1], [0.5, -0.5, 0.25, 3, 3, 3, -3, 7]]
)
def test_p_values_with_ties_and_zeros_count_all_signs(differences):
    sizes = [abs(value) for value in differences if value]
    ranks = [sum(other < size for other in sizes) + (sizes.count(size) + 1) / 2 for size in sizes]
    observed = sum(rank for value, rank in zip([v for v in differences if v], ranks, strict=True) if value > 0)
    sums = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    less, greater = verdict.p_values(differences)
    assert less == sum(s <= observed for s in sums) / len(sums)
    assert greater == sum(s >= observed for s in sums) / len(sums)


@pytest.mark.slow
def test_a_thousand_pairs_have_an_exact_p_value_soon():
    stats = pytest.importorskip("scipy.stats")
    differences, began = draw(1000, centre=0.1), time.process_time()
    p = verdict.two_sided_p(differences)
    assert time.process_time() - began < 10, "the time is not of the third order in Python"
    assert p == pytest.approx(stats.wilcoxon(differences, method="exact").pvalue, rel=1e-9)


def test_differences_of_zero_say_nothing():
    assert verdict.p_values([0.0, 0.0]) == (1.0, 1.0)
    assert verdict.two_sided_p([]) == 1.0


@pytest.mark.parametrize("count", [8, 11, 16])
def test_the_interval_holds_the_centres_that_the_test_does_not_reject(count):
    differences = draw(count, centre=0.5)
    low, high = verdict.interval(differences, 0.99)

    def p_of(centre):
        return verdict.two_sided_p([value - centre for value in differences])

    assert p_of(low + 1e-9) > 0.01 and p_of(high - 1e-9) > 0.01
    assert p_of(low - 1e-9) <= 0.01 and p_of(high + 1e-9) <= 0.01
    assert low < verdict.hodges_lehmann(differences) < high


def test_seven_pairs_have_no_interval_of_99_percent_and_eight_have_their_range():
    assert verdict.interval(draw(7), 0.99) is None
    assert verdict.interval(draw(8), 0.99) == (min(draw(8)), max(draw(8)))


def test_the_centre_is_the_median_of_all_means_of_two():
    assert verdict.hodges_lehmann([1, 2, 6]) == 2.75  # of 1, 1.5, 2, 3.5, 4, 6


def test_eight_pairs_reject_in_2_of_256_assignments_of_signs():
    assert verdict.rejection_rate(8, 0.01) == 2 / 256
    assert verdict.rejection_rate(7, 0.01) == 0.0


# --- verdicts --------------------------------------------------------------------------------------------------------


def pairs_around(percent, spread=0.2, count=8):
    """Return log ratios that lie evenly around a change of ``percent``, up to ``spread`` % from it."""
    return [math.log1p((percent + spread * (2 * i / (count - 1) - 1)) / 100) for i in range(count)]


@pytest.mark.parametrize(
    ("percent", "expected"),
    [(-3, Verdict.FASTER), (3, Verdict.SLOWER), (1.3, Verdict.SLOWER), (0.3, Verdict.SAME), (1, Verdict.INCONCLUSIVE)],
)
def test_a_change_beyond_the_floor_is_a_verdict_and_one_within_is_the_same(percent, expected):
    judged = verdict.judge(pairs_around(percent))
    assert judged.verdict is expected
    assert judged.percent == pytest.approx(percent, abs=0.05)
    assert judged.pairs == 8
    assert judged.ci_low < judged.ratio < judged.ci_high


def test_a_known_spread_of_the_case_raises_the_floor():
    assert verdict.judge(pairs_around(3), floor=0.05).verdict is Verdict.SAME
    assert verdict.judge(pairs_around(6), floor=0.05).verdict is Verdict.SLOWER


def test_seven_pairs_never_decide_that_b_is_faster():
    judged = verdict.judge(pairs_around(-20, count=7))
    assert (judged.verdict, judged.pairs_more) == (Verdict.INCONCLUSIVE, 1)
    assert (judged.ci_low, judged.ci_high) == (None, None)


def test_further_pairs_decide_about_as_often_as_forecast():
    machine, rng = simulation.Machine(simulation.normal(0.01)), random.Random(5)
    decided = []
    for _ in range(300):
        first = simulation.log_ratios(machine, 8, 0.02, rng)
        judged = verdict.judge(first)
        if judged.verdict is Verdict.INCONCLUSIVE and judged.pairs_more is not None and judged.pairs_more <= 60:
            more = simulation.log_ratios(machine, judged.pairs_more, 0.02, rng)
            decided.append(verdict.judge([*first, *more]).verdict is not Verdict.INCONCLUSIVE)
    assert len(decided) > 50
    # The forecast rests on the spread of eight pairs, which is itself uncertain.
    assert sum(decided) / len(decided) > 0.5


def test_the_forecast_holds_on_a_machine_where_single_processes_are_20_times_slower():
    rng = random.Random(3)

    def draw(count):
        """Return pairs of which B is slower by 2 %; one in five processes of a side meets another load."""
        return [
            0.02
            + rng.gauss(0.0, 0.01)
            + sum(sign * rng.uniform(1, 3) for sign in (1, -1) if rng.random() < 0.2)
            for _ in range(count)
        ]  # fmt: skip

    decided = []
    for _ in range(120):
        judged = verdict.judge(first := draw(8))
        if judged.verdict is Verdict.INCONCLUSIVE and judged.pairs_more is not None and judged.pairs_more <= 120:
            more = draw(judged.pairs_more)
            decided.append(verdict.judge([*first, *more]).verdict is not Verdict.INCONCLUSIVE)
    assert len(decided) > 30
    assert sum(decided) / len(decided) > 0.4


def test_a_wide_inconclusive_case_is_not_one_pair_from_a_verdict():
    judged = verdict.judge([-0.4, -0.1, 0.05, 0.2, 0.4, 2.9, 3.0, 3.1])
    assert judged.verdict is Verdict.INCONCLUSIVE
    assert judged.pairs_more > 10


def test_the_ratio_of_pairs_with_slow_processes_is_their_median():
    slow = [0.0, 0.01, 0.02, 0.02, 0.03, 2.9, 3.0, 3.1]
    assert verdict.judge(slow).ratio == pytest.approx(math.exp(0.025))
    assert verdict.judge(slow[:5]).ratio == pytest.approx(math.exp(verdict.hodges_lehmann(slow[:5])))


def test_a_difference_on_the_floor_needs_more_pairs_than_anyone_runs():
    wide = [math.log(1.01) + offset for offset in (-0.02, -0.01, -0.005, -0.001, 0.001, 0.005, 0.01, 0.02)]
    judged = verdict.judge(wide)
    assert (judged.verdict, judged.pairs_more) == (Verdict.INCONCLUSIVE, None)


def test_processes_that_all_take_the_same_time_are_the_same():
    assert verdict.judge([0.0] * 8).verdict is Verdict.SAME


@pytest.mark.parametrize("log_ratios", [[], [0.1, math.nan], [math.inf]])
def test_a_verdict_needs_finite_times(log_ratios):
    with pytest.raises(ValueError, match="at least one pair"):
        verdict.judge(log_ratios)


def test_the_spread_of_pairs_is_their_standard_deviation_and_ignores_one_slow_process():
    rng = random.Random(2)
    ratios = [rng.gauss(0.0, 0.012) for _ in range(500)]
    assert verdict.spread(ratios) == pytest.approx(0.012, rel=0.1)
    assert verdict.spread([*ratios, 3.0]) == pytest.approx(verdict.spread(ratios), rel=0.02)


# --- error rates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "machine"), list(simulation.machines()))
def test_verdicts_on_the_same_code_are_wrong_in_less_than_half_a_percent(name, machine):
    assert simulation.false_rate(simulation.eight_pairs, machine, 4000, seed=1) < 0.005


@pytest.mark.parametrize(("name", "machine"), list(simulation.machines()))
def test_a_change_of_3_percent_is_found_and_never_in_the_wrong_direction(name, machine):
    shares = simulation.verdict_shares(machine, 0.03, 1000, seed=1)
    assert shares[Verdict.SLOWER] > 0.83
    assert shares[Verdict.FASTER] == 0
    assert shares[Verdict.SAME] < 0.005


def test_one_process_a_side_is_wrong_more_often_than_not():
    for _, machine in simulation.machines():
        assert simulation.false_rate(simulation.one_process_a_side, machine, 1000, seed=1) > 0.4


def test_the_expected_number_of_false_verdicts_bounds_those_of_a_page():
    machine, rng = simulation.Machine(simulation.normal(0.01)), random.Random(7)
    judged = [verdict.judge(simulation.log_ratios(machine, 8, 0.0, rng)) for _ in range(4000)]
    false = sum(each.verdict in (Verdict.FASTER, Verdict.SLOWER) for each in judged)
    assert 0 < false <= 1.5 * verdict.expected_false(judged)
    assert verdict.expected_false(judged) < 0.005 * len(judged)


def is_false(shares):
    return shares[Verdict.FASTER] + shares[Verdict.SLOWER]


def machines_of_further_pairs():
    return list(itertools.chain(simulation.machines(), simulation.state_machines()))


@pytest.mark.slow
def test_both_blocks_together_are_wrong_in_less_than_half_a_percent():
    every = machines_of_further_pairs()
    rates = [is_false(simulation.further_shares(machine, 0.0, 150, seed=1)[0]) for _, machine in every]
    assert sum(rates) / len(rates) < 0.005


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "machine"), machines_of_further_pairs())
def test_both_blocks_together_are_wrong_in_less_than_half_a_percent_whatever_varies(name, machine):
    assert is_false(simulation.further_shares(machine, 0.0, 2000, seed=2)[0]) < 0.005


@pytest.mark.parametrize("slow", simulation.STATES)
def test_further_pairs_find_5_percent_where_visits_are_in_two_states_10_percent_apart(slow):
    machine = simulation.Machine(lambda rng: 0.0, of_visits=simulation.two_states(slow))
    shares, pairs = simulation.further_shares(machine, 0.05, 200, seed=1)
    assert shares[Verdict.SLOWER] >= 0.99 and shares[Verdict.FASTER] == 0
    assert pairs < 12


def test_pairs_of_one_visit_would_not_find_it():
    one_visit = simulation.Machine(lambda rng: 0.0, of_visits=simulation.two_states(0.5))
    assert simulation.found_share(one_visit, 0.05, 20, 100, seed=1) < 0.5


def test_the_benchmark_prints_its_tables():
    argv = [sys.executable, str(ROOT / "benchmarks" / "verdicts.py"), "--repetitions", "16"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    for line in (
        "| normal, sd 1 %, drift 1 % |",
        "| heavy-tailed, sd 1 % | +5 % |",
        "| visits in two states, 50 % slow | +5 % |",
    ):
        assert line in done.stdout


@pytest.mark.parametrize("difference", [0.65, -2.0])
def test_pairs_scatter_by_their_spread_and_never_by_their_difference(difference):
    assert verdict.scatters([difference + value for value in (-0.3, 0.1, 0.2, -0.1)])
    assert not verdict.scatters([difference + value for value in (-0.01, 0.0, 0.01, 0.02)])
    assert verdict.scatters([difference + value for value in (-0.01, 0.0, 0.01, 0.02)], percent=1)


@pytest.mark.parametrize("sizes", [(0.3, 0.1, 0.2, 0.05), (0.01, 0.02, 0.03, 0.02)])
def test_the_order_of_the_sides_never_changes_whether_pairs_scatter(sizes):
    signed = (
        [size * sign for size, sign in zip(sizes, signs, strict=True)] for signs in itertools.product((1, -1), repeat=4)
    )
    assert len({verdict.scatters(values) for values in signed}) == 1


@pytest.mark.parametrize(("spread", "later"), [(0.03, 0.01), (0.05, 0.03), (0.4, 0.4)])
def test_to_choose_longer_pairs_by_the_first_ones_gives_no_more_false_verdicts(spread, later):
    generator, false = random.Random(3), 0
    for _ in range(2000):
        first = [generator.gauss(0, spread) for _ in range(4)]
        judged = [generator.gauss(0, later) for _ in range(8)]
        if not verdict.scatters(first):
            judged = [*first, *(generator.gauss(0, spread) for _ in range(4))]
        false += verdict.judge(judged).verdict in (Verdict.FASTER, Verdict.SLOWER)
    assert false / 2000 <= 2 / 2**8 + 3 * math.sqrt(2 / 2**8 / 2000)


def test_what_a_machine_resolves_is_half_the_interval_or_the_floor():
    noisy = verdict.judge([-0.3, 0.2, 0.1, -0.1, 0.3, -0.2, 0.05, 0.0])
    assert noisy.resolution == pytest.approx(math.expm1(0.3), rel=0.2)
    assert verdict.judge([0.0001 * value for value in range(8)]).resolution == verdict.LEAST_FLOOR
    assert verdict.judge([0.1, 0.2]).resolution is None
