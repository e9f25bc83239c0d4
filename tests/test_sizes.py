"""Which cases are too large to try after one ran out of memory."""

import math

import pytest
from hypothesis import given, strategies as st

from profpipe.measure.case_order import is_larger

OOM = {"impl": "math", "batch": 2, "seqlen": 4096, "causal": False, "scale": None}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"seqlen": 8192}, True),
        ({"seqlen": 8192, "batch": 4}, True),
        ({"batch": 2.5}, True),
        ({}, False),
        ({"seqlen": 8192, "batch": 1}, False),
        ({"seqlen": 2048}, False),
        ({"seqlen": 8192, "impl": "fa2"}, False),
        ({"seqlen": 8192, "causal": True}, False),
        ({"causal": True}, False),
        ({"seqlen": 8192, "scale": 1.0}, False),
        ({"seqlen": "8192"}, False),
        ({"seqlen": math.nan}, False),
        ({"seqlen": 8192, "heads": 8}, False),
    ],
)
def test_larger_is_as_large_in_every_number_larger_in_one_and_the_same_in_all_else(changed, expected):
    assert is_larger({**OOM, **changed}, OOM) is expected


def test_a_larger_limit_of_memory_asks_for_no_more():
    capped = {**OOM, "memory_cap_gib": 24}
    assert not is_larger({**capped, "memory_cap_gib": 80}, capped)
    assert not is_larger({**capped, "seqlen": 8192, "memory_cap_gib": 80}, capped)
    assert is_larger({**capped, "seqlen": 8192}, capped)


def test_a_zero_may_stand_for_more_than_any_number_and_is_compared_with_another_zero_alone():
    by_default = {**OOM, "queries": 0}
    assert not is_larger({**by_default, "queries": 1}, by_default)
    assert not is_larger({**by_default, "seqlen": 8192, "queries": 1}, by_default)
    assert not is_larger({**by_default, "seqlen": 8192}, {**by_default, "queries": -1})
    assert is_larger({**by_default, "seqlen": 8192}, by_default)


def test_a_missing_parameter_is_not_compared_with_anything():
    assert not is_larger({"seqlen": 8192}, OOM)


POINTS = st.fixed_dictionaries({"n": st.integers(0, 3), "m": st.floats(0, 3), "kind": st.sampled_from("ab")})


@given(POINTS, POINTS)
def test_of_two_cases_at_most_one_is_larger(a, b):
    assert not (is_larger(a, b) and is_larger(b, a))


@given(POINTS, POINTS, POINTS)
def test_being_larger_is_transitive(a, b, c):
    assert not (is_larger(a, b) and is_larger(b, c)) or is_larger(a, c)
