"""Numbers as tools print them: any grouping of digits, either decimal mark."""

import pytest
from hypothesis import given, strategies as st

from profpipe.ingest import printed


def written(value, group, mark):
    """``value`` with two decimals."""
    return f"{value:,.2f}".replace(",", "\0").replace(".", mark).replace("\0", group)


@given(
    value=st.floats(min_value=-1e12, max_value=1e12).map(lambda value: round(value, 2)),
    group=st.sampled_from(["", ",", ".", " ", "'", "\u2019", "\u00a0", "\u202f"]),
    mark=st.sampled_from([".", ","]),
)
def test_a_number_is_read_back_from_any_locale(value, group, mark):
    if group == mark:
        group = ""
    text = written(value, group, mark)
    assert printed.decimal_mark([text]) == mark
    assert printed.number(text, mark) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(
    ("texts", "mark"),
    [
        (["64.000", "1,5"], ","),
        (["64,000", "1.5"], "."),
        (["27.595.520"], ","),
        (["64.000", "12"], "."),
        (["0.125"], "."),
        (["0,125"], ","),
        (["1.234,5", "1,234.5"], "."),
        (["12 345,5"], ","),
        ([], "."),
    ],
)
def test_unambiguous_numbers_decide_the_decimal_mark(texts, mark):
    assert printed.decimal_mark(texts) == mark


@pytest.mark.parametrize("text", ["", "n/a", "nan", "1.2.3", "12abc", "0x10", "1e999", "٣", "-", "5 (2; 3)"])
def test_text_that_is_not_a_number_is_none(text):
    assert printed.number(text, ".") is None
