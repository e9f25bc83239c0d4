"""benchmarks/house.py counts lines of code, and benchmarks/net.py finds what differs between two checkouts."""

import ast
import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import house
import net

SOURCE = '''"""A module."""

import os
from pathlib import (
    Path,
)


class A:
    """A class."""

    #: A comment.
    text = """two

    lines"""


def f():
    """Return
    a path."""
    return Path(os.sep)  # its root
'''


def test_lines_of_code_are_those_without_blanks_comments_docstrings_and_imports():
    # `class A`, three lines of its text, `def f` and `return`.
    assert house.code_lines(SOURCE, ast.parse(SOURCE)) == 6


@pytest.fixture
def sides(tmp_path):
    """Two folders with the same page and the same table."""
    for name in ("a", "b"):
        (tmp_path / name / "examples").mkdir(parents=True)
        (tmp_path / name / "examples" / "SUMMARY.md").write_text("# A run\n\n4 cases\n")
        pd.DataFrame({"n": [1, 2], "time_ns": [1.0, 2.0]}).to_parquet(tmp_path / name / "examples" / "cases.parquet")
    return tmp_path / "a", tmp_path / "b"


def test_equal_folders_have_no_difference(sides, capsys):
    assert net.compare(*sides) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 compared, 0 different"


def test_another_word_another_type_and_a_missing_file_are_differences(sides, capsys):
    examples = sides[1] / "examples"
    (examples / "SUMMARY.md").write_text("# A run\n\n5 cases\n")
    pd.DataFrame({"n": [1.0, 2.0], "time_ns": [1.0, 2.0]}).to_parquet(examples / "cases.parquet")
    (sides[0] / "examples" / "details.md").write_text("# Details\n")
    assert net.compare(*sides) == 1
    lines = capsys.readouterr().out.splitlines()
    assert {"-4 cases", "+5 cases", "=== examples/details.md: only in A", "[left]:  int64"} <= set(lines)
    assert lines[-1] == "3 compared, 3 different"


def test_a_difference_in_the_last_digit_of_a_table_counts(sides):
    pd.DataFrame({"n": [1, 2], "time_ns": [1.0, 2.0000000000000004]}).to_parquet(sides[1] / "examples/cases.parquet")
    assert net.compare(*sides) == 1
