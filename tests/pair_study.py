"""Tables and records of `ab` runs with made-up times, and a small project to run."""

import os
from collections.abc import Mapping
from pathlib import Path

from profpipe.analysis import pairs
from profpipe.report import render
from profpipe.report.document import OnPage
from profpipe.report.markdown import Markdown
from profpipe.results import schema
from profpipe.results.manifest import Manifest, PairsEntry, SideEntry, Undecided
from profpipe.results.schema import CASES, METRICS, Tables

ROOT = Path(__file__).resolve().parents[1]

_KEY = {"run": "r", "workload": "w", "profiler": "plain"}


def tables_of(ratios, failures=(), marks=()):
    """Return tables of cases: B over A in each pair by case; A takes 1 ms. ``marks``: (case, side, metric)."""
    failed = dict(failures)
    cases, metrics = [], []
    for case, values in ratios.items():
        status, reason = failed.get(case, ("ok", ""))
        cases.append({**_KEY, "case": case, "status": status, "reason": reason, "params": "{}", "flags": "[]"})
        for number, ratio in values.items() if isinstance(values, Mapping) else enumerate(values, start=1):
            for side, ns in (("A", 1e6), ("B", 1e6 * ratio)):
                times = {"subject": f"pair {number} {side}", "metric": "time", "value": ns, "unit": "ns", "n": 9}
                metrics.append({**_KEY, "case": case, **times})
    for case, side, metric in marks:
        mark = {"subject": f"pair 1 {side}", "metric": metric, "value": 1.0, "unit": "1", "n": 1}
        metrics.append({**_KEY, "case": case, **mark})
    return Tables(cases=schema.frame(CASES, cases), metrics=schema.frame(METRICS, metrics))


def run_of(gate=None, undecided=Undecided.REPORT, **more):
    settings = PairsEntry(SideEntry(), SideEntry(("set:impl=new",)), gate=gate, undecided=undecided, **more)
    return Manifest(name="small", started="2026-11-23T10:00:00+00:00", ended="2026-11-23T10:02:00+00:00", ab=settings)


def page_of(data, run):
    """Return SUMMARY.md of an `ab` run without its head."""
    sections = render.build_pairs(pairs.analyze(data, run), data, run).without(OnPage.HTML).sections
    return "\n\n".join(filter(None, map(Markdown().section, sections))) + "\n"


def environment(*paths, **variables):
    """Return the variables of a run without GPU and without torch. ``paths`` are further ones for Python."""
    path = os.pathsep.join(map(str, (ROOT, *paths, ROOT / "tests" / "no_torch")))
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "PROFPIPE_TEST": "1", **variables}
