"""The tables and plots that a pipeline file asks for, filled."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from profpipe.analysis.cases import Axes
from profpipe.config.study_values import StudyValue

#: Pairs of an axis and a value.


class NoValue(str, Enum):
    """Why a case that ran has no value. Other cells without a value hold the status of their case."""

    INACCURATE = "inaccurate"
    UNCHECKED = "unchecked"
    BASELINE_INACCURATE = "baseline inaccurate"
    BASELINE_UNCHECKED = "baseline unchecked"
    BASELINE_ELSEWHERE = "baseline on an unlike node"
    UNFUSED = "unfused"
    IN_GRAPHS = "inside CUDA graphs"

    __str__ = str.__str__


@dataclass(frozen=True)
class Cell:
    """A number in its stored unit, or a word; without either, ``missing`` is a status or a ``NoValue``."""

    value: float | str | None = None
    missing: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grid:
    """One table: ``cells`` by row and column; None where the pipeline file has no such case.

    ``others`` are the values of the axes that the table does not name. A row or a column has a value for each axis.
    ``skipped`` are the numbers of rows and columns that are left out, because all their cases were skipped.
    """

    others: Axes
    rows: tuple[tuple[Any, ...], ...]
    columns: tuple[tuple[Any, ...], ...]
    cells: tuple[tuple[Cell | None, ...], ...]
    skipped: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Study:
    """A table of the pipeline file, the largest of its grids first. The rows of a plot are what it runs over.

    Among its axes are ``value`` and ``phase`` where several were requested.
    """

    title: str
    values: tuple[StudyValue, ...]
    phases: tuple[str, ...]
    row_axes: tuple[str, ...]
    column_axes: tuple[str, ...]
    grids: tuple[Grid, ...]
    note: str = ""
    #: Whether it opens the page, above the headline.
    is_first: bool = False
    has_cases: bool = True
    #: The number of grids that are left out because all their cases were skipped.
    skipped_grids: int = 0
    #: The values that no case has though some ran, and why cells lack them. A table leaves them out, a plot does not.
    absent: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: The requested ranges in which no case has anything.
    empty_phases: tuple[str, ...] = ()
    #: The flags of all cases, where there are several.
    shared_flags: tuple[str, ...] = ()
    #: The axes that have one value in all cells.
    fixed: Axes = ()
    #: The stored unit of each value, and the units that the pipeline file requests.
    units: Mapping[str, str] = field(default_factory=dict)
    requested_units: tuple[str, ...] = ()
    #: The stored unit of the first axis of the rows where that is a metric: its values were measured.
    row_unit: str | None = None
    #: The profiler and quantity of its times, as in a Basis.
    basis: tuple[str, str] | None = None
    kernel_profiler: str | None = None
    #: Whether kernel times are per call, and of the operators of a CPU.
    is_per_call: bool = True
    is_cpu: bool = False
    #: Whether profilers are an axis: then each has its times, plain of calls and the others of their kernels.
    is_by_profiler: bool = False
    #: The compared axis, and the values that baselines have on it.
    compare: str | None = None
    baselines: tuple[Any, ...] = ()
    #: By axis, the number of cases that are left out because they have no value on it.
    cases_without_axis: Mapping[str, int] = field(default_factory=dict)
    #: By measure, the tolerance of the results, where all workloads have the same.
    tolerance: Mapping[str, float] = field(default_factory=dict)
    #: Whether a case leaves out a part of the work that its FLOP/s count.
    has_sparse_cases: bool = False

    def cells(self, grids: Sequence[Grid] | None = None) -> Iterator[tuple[Mapping[str, Any], StudyValue, Cell | None]]:
        """Yield each cell of ``grids`` (default: all) with its place on the axes and its value."""
        for grid in self.grids if grids is None else grids:
            for row, cells in zip(grid.rows, grid.cells, strict=True):
                for column, cell in zip(grid.columns, cells, strict=True):
                    yield self.place(row, column), self.value_at(row, column), cell

    def place(self, row: Sequence[Any], column: Sequence[Any]) -> dict[str, Any]:
        return dict(zip((*self.row_axes, *self.column_axes), (*row, *column), strict=True))

    def value_at(self, row: Sequence[Any], column: Sequence[Any]) -> StudyValue:
        name = self.place(row, column).get("value")
        return next((value for value in self.values if value.name == name), self.values[0])
