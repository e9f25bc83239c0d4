"""The time of a program's modules in a step, by class and by path. Times are nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from profpipe.results.schema import Pass

#: Modules whose paths differ in numbers only, such as the layers of a model, are one row up to this ratio of their
#: times.
_ALIKE = 1.5
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True)
class ModuleTime:
    """Time of ``count`` modules of one class or path in a step, by the part of the step.

    ``is_compiled``: functions of torch.compile take most of the time that is their own.
    """

    name: str
    type: str
    count: int
    forward_ns: float
    backward_ns: float
    own_ns: float
    is_compiled: bool = False

    @property
    def ns(self) -> float:
        return self.forward_ns + self.backward_ns


@dataclass(frozen=True)
class CaseModules:
    """The modules of a case: means over the steps and ``processes``.

    ``types`` have the time of their own kernels. With ``optimizer_ns`` and ``outside``, the time outside all modules,
    they add up to ``total_ns``. ``modules`` have the time of the modules that they call, too; most time first.
    """

    case: str
    steps: int
    processes: int
    total_ns: float
    types: tuple[ModuleTime, ...]
    modules: tuple[ModuleTime, ...]
    optimizer_ns: float
    outside: ModuleTime


def find_modules(table: pd.DataFrame, case: str) -> CaseModules | None:
    """Return the modules of ``case``, None where none were recorded."""
    case_rows = table[table["case"] == case]
    if case_rows.empty:
        return None
    processes = case_rows["source"].nunique()
    case_rows = case_rows.assign(
        **{name: case_rows[name].astype(float) / processes for name in ("self_ns", "total_ns", "compiled_ns")}
    )
    inside, outside = case_rows[case_rows["module"] != ""], case_rows[case_rows["module"] == ""]
    optimizer = outside["part"] == Pass.OPTIMIZER.value
    return CaseModules(
        case,
        int(case_rows["steps"].max()),
        processes,
        float(case_rows["self_ns"].sum()),
        _most_first(_sum(str(type), str(type), rows, "self_ns") for type, rows in inside.groupby("type")),
        _most_first(_join_alike_modules(inside)),
        float(outside.loc[optimizer, "self_ns"].sum()),
        _sum("", "", outside[~optimizer], "self_ns"),
    )


def _most_first(modules: Iterator[ModuleTime]) -> tuple[ModuleTime, ...]:
    return tuple(sorted(modules, key=lambda module: (-module.ns, module.name)))


def _sum(name: str, type: str, rows: pd.DataFrame, column: str) -> ModuleTime:
    is_backward = rows["part"] == Pass.BACKWARD.value
    self_ns, compiled = float(rows["self_ns"].sum()), float(rows["compiled_ns"].sum())
    return ModuleTime(
        name,
        type,
        rows.loc[rows["module"] != "", "module"].nunique(),
        float(rows.loc[~is_backward, column].sum()),
        float(rows.loc[is_backward, column].sum()),
        self_ns,
        is_compiled=compiled > self_ns / 2,
    )


def _join_alike_modules(inside: pd.DataFrame) -> Iterator[ModuleTime]:
    """Yield the modules, those that are alike as one."""
    names = inside["module"].map(lambda path: _NUMBER.sub(".*", path))
    for key, rows in inside.groupby([names, inside["type"]]):
        name, type = map(str, key)
        times = rows.groupby("module")["total_ns"].sum()
        if times.max() <= _ALIKE * times.min():
            # A path keeps its number where no other one is like it.
            yield _sum(name if len(times) > 1 else str(times.index[0]), type, rows, "total_ns")
        else:
            for path, path_rows in rows.groupby("module"):
                yield _sum(str(path), type, path_rows, "total_ns")
