"""What counts as the same computation: losses, norms and outputs of a changed program beside those of the unchanged."""

import json
import math

import numpy as np
import pytest

from profpipe.analysis.losses import Observation, compare, read_observation


def program(seed, factor=1.0, begin=1.0, moved=3.0, length=50, norm=2.0):
    """A training whose loss falls, a little different under each seed."""
    losses = [begin * factor**step * (2 - 0.01 * step + 0.01 * seed) for step in range(length)]
    return Observation(losses=losses, gradient_norm=[norm + 0.01 * seed], parameter_change=[moved + 0.01 * seed])


UNCHANGED = {seed: program(seed) for seed in range(5)}


def test_the_same_curve_is_the_same():
    compared = compare({0: program(0), 1: program(1)}, UNCHANGED)
    assert compared.harm == "" and compared.text.startswith("loss +0.00 %, seeds ±")


@pytest.mark.parametrize(
    ("changed", "harm"),
    [
        ({"factor": 1.002}, "loss +"),
        ({"begin": 1.2}, "begins at another loss, as from a checkpoint or with other data: +19.8"),
        ({"moved": 6.0}, "parameter change +9"),
        ({"norm": 2.5}, "gradient norm +"),
        ({"length": 25}, "has 25 losses, not 50"),
    ],
)
def test_what_lies_outside_of_the_spread_is_refused(changed, harm):
    assert compare({0: program(0, **changed)}, UNCHANGED).harm.startswith(harm)


def test_what_trains_nothing_is_refused_however_far_the_seeds_lie_apart():
    apart = {seed: program(seed, moved=1.0 + seed) for seed in range(5)}
    assert compare({2: program(2, moved=-0.02)}, apart).harm == "parameter change -100.00 %, seeds ±90.00 %"


def test_chance_seldom_refuses_a_change_that_draws_other_random_numbers():
    chance = np.random.default_rng(0)
    for count in (1, 2):
        curves = (2 + chance.normal(0, 0.2, (400, 5 + count, 50))).tolist()
        runs = [[Observation(losses=losses) for losses in of_run] for of_run in curves]
        refused = [compare(dict(enumerate(run[5:])), dict(enumerate(run[:5]))).harm for run in runs]
        assert sum(map(bool, refused)) < 0.08 * len(refused)


def test_a_loss_that_is_no_number_is_refused():
    broken = Observation(losses=[*program(0).losses[:-1], math.nan])
    assert "is no number" in compare({0: broken}, UNCHANGED).harm


def test_no_band_is_narrower_than_half_a_percent_of_the_loss():
    alike = {seed: program(0) for seed in range(5)}
    assert compare({0: program(0, begin=1.004)}, alike).harm == ""
    assert compare({0: program(0, begin=1.006)}, alike).harm.startswith("loss +0.60 %, seeds ±0.50 %")


def test_a_program_without_a_loss_is_compared_by_its_first_output():
    unchanged = {0: Observation(output=[3.0, 4.0])}
    assert compare({0: Observation(output=[3.0, 4.1])}, unchanged).text == "first output 2.00 %, limit 5 %"
    assert "limit 5 %" in compare({0: Observation(output=[4.0, 3.0])}, unchanged).harm
    assert compare({0: Observation(output=[3.0])}, unchanged).harm
    assert compare({}, unchanged).harm == "left nothing to compare"


def test_of_several_processes_the_first_rank_that_trains_is_read(tmp_path):
    assert read_observation(tmp_path) is None
    for pid, rank, losses in ((1, 0, []), (2, 0, [1.0]), (3, 1, [2.0, 3.0])):
        document = {"rank": rank, "losses": losses}
        (tmp_path / f"hook.capture.observed.{pid}.json").write_text(json.dumps(document), encoding="utf-8")
    assert read_observation(tmp_path).losses == [1.0]
