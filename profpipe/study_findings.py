"""The tables that a study asked for, as plain values: what stands in which cell, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from profpipe.asked import Asked

#: What the mark of the baseline's own result follows, in a cell that has no speed-up for it.
BASELINE = "baseline"

#: Pairs of an axis and a value.
Axes = tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Cell:
    """A number in the unit that it is stored in, or a word; without either, ``fate`` says what became of the case."""

    value: float | str | None = None
    fate: str = ""
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """One table: ``cells`` by row and column; None where the study has no such case.

    ``others`` is what the axes that the table does not name have in it. A row or a column is a value for each axis.
    """

    others: Axes
    rows: tuple[tuple[Any, ...], ...]
    columns: tuple[tuple[Any, ...], ...]
    cells: tuple[tuple[Cell | None, ...], ...]


@dataclass(frozen=True)
class Study:
    """A table of the pipeline file, filled: the largest of its grids first. Of a plot the rows are what it runs over.

    Among its axes are ``value`` and ``phase`` where several were asked for. ``fixed`` is what all of its cases share,
    ``units`` the stored unit of each value, ``wanted`` the units that it asks to be shown in. ``lacking`` counts the
    cases without a value of an axis, by that axis.
    """

    title: str
    workloads: tuple[str, ...]
    values: tuple[Asked, ...]
    phases: tuple[str, ...]
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    grids: tuple[Grid, ...]
    note: str = ""
    #: Whether it opens the page, above the answers on speed.
    first: bool = False
    fixed: Axes = ()
    units: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    #: What its times are and whose, as in a Basis: (profiler, quantity).
    basis: tuple[str, str] | None = None
    kernel_profiler: str | None = None
    #: Whether kernel times are per call, and of the operators of a CPU.
    iterated: bool = True
    cpu: bool = False
    #: The compared axis, and the values that baselines have on it.
    compare: str | None = None
    baselines: tuple[Any, ...] = ()
    lacking: Mapping[str, int] = field(default_factory=dict)
    #: By measure, how far a result may be from its reference, where all of its workloads allow the same.
    tolerance: Mapping[str, float] = field(default_factory=dict)
    #: Whether a case leaves out a part of the work that its FLOP/s count.
    sparse: bool = False
