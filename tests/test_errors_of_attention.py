"""The measures of a difference: by hand-computed numbers, by their formulas over whole tensors, and at their ends."""

import math

import lazy
import pytest

pytestmark = lazy.needs("torch")
torch = lazy.module("torch")
accuracy = lazy.module("profpipe.workload_lib.accuracy")


def measures(got, expected):
    seen = accuracy.Difference()
    seen.add(torch.tensor(got), torch.tensor(expected))
    return seen.measures()


def test_each_measure_of_a_small_difference_is_the_one_computed_by_hand():
    # Distances 1, 0, 2 from references of size 3, 4, 0; sums of squares 4 + 16 + 4, 9 + 16 and products 6 + 16.
    assert measures([2.0, 4.0, 2.0], [3.0, 4.0, 0.0]) == pytest.approx({
        "error_max": 2, "error_mean": 1, "error_rel_l1": 3 / 7, "error_rmse": math.sqrt(5 / 3),
        "cosine": 22 / math.sqrt(24 * 25),
    })  # fmt: skip


def test_blocks_give_what_the_whole_gives(monkeypatch):
    a = torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(0))
    b = (a + 0.1 * torch.randn(50, 3, 4, generator=torch.Generator().manual_seed(1))).half()
    distance = b.double() - a.double()
    truth = {
        "error_max": distance.abs().max(),
        "error_mean": distance.abs().mean(),
        "error_rel_l1": distance.abs().sum() / a.double().abs().sum(),
        "error_rmse": distance.square().mean().sqrt(),
        "cosine": torch.cosine_similarity(b.double().flatten(), a.double().flatten(), dim=0),
    }
    monkeypatch.setattr(accuracy, "BLOCK", 7 * 12)  # 7 of the 50 rows at once
    seen = accuracy.Difference()
    for rows in (slice(0, 20), slice(20, 50)):
        seen.add(b[rows], a[rows])
    assert seen.measures() == pytest.approx({name: value.item() for name, value in truth.items()})


def test_no_more_than_a_block_is_ever_held_in_fp64(monkeypatch):
    sizes, add = [], accuracy.Difference._add
    monkeypatch.setattr(accuracy, "BLOCK", 64)
    monkeypatch.setattr(accuracy.Difference, "_add", lambda self, a, b: sizes.append(a.numel()) or add(self, a, b))
    accuracy.Difference().add(torch.zeros(100, 8), torch.zeros(100, 8))
    assert max(sizes) == 64 and sum(sizes) == 800


def test_equal_tensors_differ_by_nothing_and_point_the_same_way():
    same = torch.randn(100)
    assert measures(same.tolist(), same.tolist()) == {
        "error_max": 0, "error_mean": 0, "error_rel_l1": 0, "error_rmse": 0, "cosine": 1,
    }  # fmt: skip


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_nan_or_an_overflow_anywhere_is_the_worst_of_every_measure(wrong):
    seen = accuracy.Difference()
    seen.add(torch.tensor([1.0, wrong]), torch.tensor([1.0, 2.0]))
    seen.add(torch.tensor([1.0]), torch.tensor([1.0]))
    found = seen.measures()
    assert found.pop("cosine") == -1
    assert set(found.values()) == {math.inf}


def test_zeros_have_measures_too():
    zero, one = [0.0, 0.0], [1.0, 0.0]
    assert [measures(zero, zero)[name] for name in ("error_rel_l1", "cosine")] == [0, 1]
    assert [measures(one, zero)[name] for name in ("error_rel_l1", "cosine")] == [math.inf, 0]
    assert [measures(zero, one)[name] for name in ("error_rel_l1", "cosine")] == [1, 0]


def test_the_names_of_a_gradient_end_in_its_own():
    seen = accuracy.Difference()
    seen.add(torch.ones(2), torch.ones(2))
    assert list(seen.measures("dq")) == [
        "error_max_dq", "error_mean_dq", "error_rel_l1_dq", "error_rmse_dq", "cosine_dq",
    ]  # fmt: skip


def test_shapes_that_differ_are_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match=r"shape \(2, 3\) has a reference of shape \(3, 2\)"):
        accuracy.Difference().add(torch.zeros(2, 3), torch.zeros(3, 2))
