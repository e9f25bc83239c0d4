"""The interval of a median."""

import math

import numpy as np
import pytest

from profpipe.measure import statistics


def test_the_interval_of_the_median_has_the_stated_coverage():
    """Ranks against the binomial distribution itself, summed exactly; 30 and 100 are in the tables of textbooks."""
    for n in (6, 7, 9, 20, 30, 100, 301):
        low, high = statistics.median_interval(np.arange(1.0, n + 1))

        def missed(rank, n=n):
            return 2 * sum(math.comb(n, k) for k in range(int(rank))) / 2**n

        assert missed(low) <= 0.05 < missed(low + 1)
        assert high == n + 1 - low
    # The table of Conover's method that textbooks print: k-th smallest and largest for 95 %.
    printed = {6: (1, 6), 8: (1, 8), 9: (2, 8), 10: (2, 9), 20: (6, 15), 30: (10, 21), 50: (18, 33), 100: (40, 61)}
    assert {n: statistics.median_interval(np.arange(1.0, n + 1)) for n in printed} == printed


@pytest.mark.parametrize("n", range(6))
def test_fewer_than_six_samples_have_no_interval(n):
    assert statistics.median_interval([1.0] * n) is None
