"""The tables of a committed example, for tests that recompute what a page says of it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1] / "examples"


class Example:
    """The tables of one example. Cases are chosen by their parameters: ``time(impl="fa2", seqlen=4096)``."""

    def __init__(self, name: str) -> None:
        self.folder = ROOT / name
        self.run: dict[str, Any] = json.loads((self.folder / "run.json").read_text(encoding="utf-8"))
        self.kernels, self.ranges = self._read("kernels"), self._read("ranges")
        rows = self._read("cases")
        params = pd.DataFrame([json.loads(text or "{}") for text in rows["params"]], index=rows.index)
        flags = [json.loads(text or "[]") for text in rows["flags"]]
        self.rows = pd.concat(
            [rows.drop(columns=["params", "flags"]), params, pd.Series(flags, rows.index, name="flags")], axis=1
        )
        self.metrics = self._read("metrics")
        metrics = self.metrics[self.metrics["subject"] == ""]
        wide = metrics.pivot_table(
            index=["workload", "case", "profiler"], columns="metric", values="value", aggfunc="last"
        )
        self.cases = self.rows.merge(wide.reset_index(), on=["workload", "case", "profiler"], how="left")
        if "flops" in self.cases:
            self.cases["tflops"] = self.cases["flops"] / self.cases["time"] / 1e3

    def _read(self, table: str) -> pd.DataFrame:
        return pd.read_parquet(self.folder / f"{table}.parquet")

    @functools.cached_property
    def plain(self) -> pd.DataFrame:
        """The cases under plain, with their parameters and metrics as columns."""
        return self.cases[self.cases["profiler"] == "plain"]

    def where(self, profiler: str = "plain", **params: Any) -> pd.DataFrame:
        """Return the cases under ``profiler`` with these values; a list or a tuple allows several."""
        found = self.cases[self.cases["profiler"] == profiler]
        for name, value in params.items():
            found = found[found[name].isin(list(value) if isinstance(value, (list, tuple)) else [value])]
        return found

    def value(self, metric: str, profiler: str = "plain", **params: Any) -> float:
        """Return a metric of the only case with these values."""
        (found,) = self.where(profiler, **params)[metric]
        return float(found)

    def time(self, **params: Any) -> float:
        """Return the median time in ns of the only case with these values."""
        return self.value("time", **params)
