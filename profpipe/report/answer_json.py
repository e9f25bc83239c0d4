"""The short JSON document, ``profpipe.answer``: what the first screen of a page says, for programs.

Each finding has an id that stays the same from run to run, a number in its stored unit, and the sentence of the page.
The sentences come from the document of the page. What results.json has too is selected from it by its path; the other
numbers come from the findings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from profpipe.analysis.bisect import Bisection
from profpipe.analysis.compare_recordings import RecordingComparison
from profpipe.analysis.compare_runs import RunComparison
from profpipe.analysis.findings import CaseResult, Findings, WinVerdict, WorkloadFindings
from profpipe.analysis.pairs import PairFindings
from profpipe.analysis.steps import StepParts
from profpipe.report import comparison, document as doc, pages
from profpipe.report.bounded_json import fit, number
from profpipe.report.labels import short_names
from profpipe.report.sections import headline, recording, steps, warnings
from profpipe.report.text import write_text
from profpipe.report.units import PERCENT, Unit
from profpipe.results.manifest import Manifest
from profpipe.stdio import visible_line

FORMAT: Final = "profpipe.answer"
VERSION: Final = 1

#: Sections whose first sentence is a finding, beside the headline.
_FINDINGS: Final = ("first_studies", "studies", *pages.FINDINGS)
#: The largest kernels of a case or of a difference.
_KERNELS: Final = 10

#: Units that pages write larger ones of, as they are stored.
_STORED: Final = {
    **dict.fromkeys(("us", "ms", "s"), "ns"),
    **dict.fromkeys(("byte", "KiB", "MiB", "GiB"), "bytes"),
    **dict.fromkeys(("GB/s", "TB/s", "byte/s"), "bytes/s"),
    **dict.fromkeys(("MFLOP", "GFLOP", "TFLOP"), "flop"),
    **dict.fromkeys(("", "%", "million", "billion"), "1"),
}


def stored_unit(unit: Unit | None) -> str:
    """Return the name of the unit in which a page's numbers of ``unit`` are stored: ``ns/step`` for ``us/step``."""
    name, size = (unit.name, unit.size) if unit else ("", 1.0)
    if name in _STORED and (size != 1.0 or name in ("", "%", "byte", "byte/s")):
        return _STORED[name]
    base, slash, per = name.partition("/")
    return f"{_STORED[base]}{slash}{per}" if slash and size != 1.0 and base in _STORED else name


def _share(value: float) -> float:
    return float(f"{value:.4g}")


#: What an answer takes from the record of a case, each by its path in the documents of results.json and of verdicts.
#: The name ``value`` stands for a number with a unit.
_TIME: Final = {
    "value": "time.median",
    "of": "time.of",
    "profiler": "time.profiler",
    "case": "case",
    "ci_low": "time.ci_low",
    "ci_high": "time.ci_high",
    "samples": "time.samples",
    "speedup": "speedup",
}
_CASE: Final = {"value": "time.median", "speedup": "speedup", "flags": "flags"}
_CHANGE: Final = {key: key for key in ("name", "outcome", "reason", "code", "place", "alters_numerics", "ns", "loss")}
_JUDGED: Final = {
    **{key: key for key in ("verdict", "a_ns", "b_ns", "ratio", "ci_low", "ci_high", "pairs", "is_beyond_noise")},
    "gate": "gate",
    "failure": "failure.reason",
}


def select_report(
    document: doc.Document, findings: Findings | PairFindings | Bisection, run: Manifest, full: dict[str, Any]
) -> dict[str, Any]:
    """Return the document of a run or of ingested files.

    ``full`` is that of results.json, of `ab` and `bisect` their verdicts.
    """
    where = _places(document)
    if isinstance(findings, PairFindings | Bisection):
        headlines = (section for section in document.sections if section.id == "headline")
        said = itertools.chain.from_iterable(map(_sentences, headlines))
        headline_findings = [_finding("verdict" if not i else f"remark.{i}", text, where.get(("headline", "")))
                 for i, text in enumerate(said)]  # fmt: skip
        if isinstance(findings, Bisection):
            more = {key: full[key] for key in ("commit", "remaining", "part", "exit_code")}
            return _document("bisect", run, document, headline_findings, [], [], more)
        more = {key: full[key] for key in ("gate", "counts", "exit_code")}
        if "tried" in full:
            more |= {key: full["tried"][key] for key in ("chosen", "loss", "harm")}
            more["changes"] = [_select(change, _CHANGE) for change in full["tried"]["changes"]]
        return _document("ab", run, document, headline_findings, full["warnings"], _sort_judged(full["cases"]), more)
    by_rank: list[tuple[int, dict[str, Any]]] = []
    for workload in findings.workloads:
        by_rank += _rank_findings(workload, full, document, where)
    ranked = [finding for _, finding in sorted(by_rank, key=lambda pair: pair[0])]
    several = len(findings.workloads) > 1
    listed = [case for workload in findings.workloads for case in cases(workload, full, several)]
    lines = [{"kind": kind, "text": write_text(line)} for kind, line in warnings.list_warnings(findings, run)]
    files = {} if run.is_run else {"files": _files(run)}
    return _document("run" if run.is_run else "ingest", run, document, ranked, lines, listed, files)


def select_comparison(
    compared: RunComparison | RecordingComparison, full: dict[str, Any], exit_code: int = 0
) -> dict[str, Any]:
    """Return the document of a comparison. ``full`` is its whole document."""
    lines, sides = full["warnings"], {side: full[side]["runs"][0] for side in ("a", "b")}
    if isinstance(compared, RunComparison):
        gate = full["gate"]
        why = comparison.gate_text(compared, compared.judge_gate(gate["percent"])) if gate else ""
        shown = [_finding("difference", comparison.run_headline(compared), None)]
        shown += [_finding("gate", why or f"B passes the gate of {gate['percent']:g} %.", None)] if gate else []
        more = {**sides, "gate": gate, "exit_code": exit_code}
        return _document(full["kind"], None, None, shown, lines, _sort_judged(full["cases"]), more)
    findings: list[dict[str, Any]] = []
    for change, case in zip(compared.changes, full["cases"], strict=True):
        name = change.a.case or change.a.workload
        findings.append(_finding(f"{name}.difference", write_text(comparison.headline(change)), None,
                              case.get("difference_ns"), "ns", **_sides(case)))  # fmt: skip
        if change.is_same:
            continue
        findings += [_finding(f"{name}.remark.{i}", write_text(text), None)
                  for i, text in enumerate(comparison.sentences(change), start=1)]  # fmt: skip
        for part, values in {**case.get("parts", {}), **case.get("compute", {})}.items():
            if values["difference_ns"]:
                findings.append(
                    _finding(f"{name}.part.{part}", "", None, values["difference_ns"], "ns", **_sides(values))
                )
        for i, kernel in enumerate(case["kernels"][:_KERNELS], start=1):
            calls = {"a_calls": number(kernel["a_calls"]), "b_calls": number(kernel["b_calls"])}
            findings.append(_finding(f"{name}.kernel.{i}", "", None, kernel.get("difference_ns"), "ns",
                                  kernel=visible_line(kernel["kernel"]), change=kernel["cause"], **calls))  # fmt: skip
    return _document(full["kind"], None, None, findings, lines, [], sides)


def _sides(figures: dict[str, Any]) -> dict[str, Any]:
    return {side: number(figures[f"{side}_ns"]) for side in ("a", "b") if figures.get(f"{side}_ns") is not None}


def _document(
    kind: str,
    run: Manifest | None,
    document: doc.Document | None,
    findings: Sequence[dict[str, Any]],
    lines: Sequence[dict[str, str]],
    cases: Sequence[dict[str, Any]],
    more: dict[str, Any],
) -> dict[str, Any]:
    about: dict[str, Any] = {"name": run.name, "title": write_text(document.title)} if run and document else {}
    if run and run.is_run:
        about |= {"started": run.started, "ended": run.ended}
        about |= {"devices": ", ".join(dict.fromkeys(gpu.name for gpu in run.machine.gpus or ()))}
    said = dict.fromkeys((line["kind"], line["text"]) for line in lines)
    return fit({
        "format": FORMAT,
        "version": VERSION,
        "kind": kind,
        **about,
        **more,
        "warnings": [{"id": f"warning.{kind}", "sentence": text} for kind, text in said],
        "findings": list(findings),
        "cases": list(cases),
    })  # fmt: skip


def _finding(
    id: str, sentence: str, where: str | None, value: float | None = None, unit: str = "", **more: Any
) -> dict[str, Any]:
    figures = {} if value is None else {"value": number(value), "unit": unit}
    fields = {"sentence": sentence, "in": where, **more}
    return {
        "id": visible_line(id),
        **figures,
        **{name: field for name, field in fields.items() if field not in (None, "")},
    }


def _places(document: doc.Document) -> dict[tuple[str, str], str]:
    """Return where each section stands, by its id and workload: ``SUMMARY.md#steps``."""
    both = zip((doc.DETAILS, doc.SUMMARY), reversed(pages.paginate(document)), strict=True)
    return {(s.id, s.workload): f"{page}#{s.id}" for page, shown in both for s in shown.sections}


def _sentences(section: doc.Section | None) -> Iterator[str]:
    """Yield the summary, the paragraphs and the items of a section, without its tables."""
    if section is None:
        return
    texts = [section.summary] if section.summary else []
    for block in section.blocks:
        texts += [block.content] if isinstance(block, doc.Paragraph) else []
        texts += block.items if isinstance(block, doc.Bullets) else ()
    yield from map(write_text, texts)


# --- a workload ------------------------------------------------------------------------------------------------------


def _rank_findings(
    workload: WorkloadFindings, full: dict[str, Any], document: doc.Document, where: dict[tuple[str, str], str]
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the findings with their rank: the answer, where its time goes, remarks, kernels."""

    def at(id: str) -> str | None:
        return where.get((id, workload.name)) or where.get((id, ""))

    name = workload.name
    win = workload.largest.win if workload.largest else None
    best = win.best if win else workload.cases[0] if len(workload.cases) == 1 else None
    answer, said = write_text(headline.answer(workload)), list(_sentences(document.section("headline", name)))
    for case, (kernel, grid, block), time in recording.fastest_launches(workload)[:1]:
        yield 0, _finding(f"{name}.fastest_kernel", "", at("launches"), time.ns, "ns", of="launch", case=case.id,
                          kernel=visible_line(kernel), grid=grid, block=block, samples=time.n)  # fmt: skip
    # Of several workloads, the answers stand together.
    yield 0, _answer(workload, best, full, answer, at("headline" if answer in said else "answers"))
    of_step = [text for text in map(write_text, steps.remarks(workload, best)) if text in said] if best else []
    case_steps = workload.steps.of(best.id) if best else None
    if case_steps and case_steps.parts_without_profiler:
        parts = case_steps.parts_without_profiler
        goes = next(iter(of_step), "")
        yield (
            1,
            _finding(
                f"{name}.step", goes, at("steps"), parts.wall_ns, "ns", profiler=case_steps.profiler, table="steps"
            ),
        )
        yield from ((1, _finding(f"{name}.gains", text, at("headline"))) for text in of_step[1:])
        yield from ((1, finding) for finding in _parts(f"{name}.step", parts))
    elif best and len(recorded := workload.steps.recordings.get(best.id, {})) == 1:
        (whole,) = recorded.values()
        yield 1, _finding(f"{name}.recording", "", at("recording"), whole.wall_ns, "ns", table="ranges")
        yield from ((1, finding) for finding in _parts(f"{name}.recording", whole))
    others = [text for text in said if text not in (answer, *of_step)]
    yield from ((2, _finding(f"{name}.remark.{i}", text, at("headline"))) for i, text in enumerate(others, start=1))
    if best:
        yield from ((3, finding) for finding in _kernels(workload, best, at("kernels")))
    for id in _FINDINGS:
        if text := next(_sentences(document.section(id, name)), ""):
            yield 4, _finding(f"{name}.{id}", text, at(id))


def _answer(
    workload: WorkloadFindings, best: CaseResult | None, full: dict[str, Any], sentence: str, at: str | None
) -> dict[str, Any]:
    """Return the answer: the time of the best case of the largest shape, where one is named."""
    if best is None or best.time is None or workload.time_source is None:
        return _finding(f"{workload.name}.answer", sentence, at)
    figures = _select(_find_records(workload, full)[best.id], _TIME)
    return _finding(f"{workload.name}.time", sentence, at, unit="ns", **figures, table="metrics")


def _parts(prefix: str, parts: StepParts) -> Iterator[dict[str, Any]]:
    """Yield the parts, and the largest of which compute, exposed communication and idle time are made."""
    idle = {"idle": parts.idle_ns}
    waiting = {"communication.waiting": parts.waiting_ns} if parts.waiting_ns is not None else {}
    classes = {f"compute.{name}": parts.classes[name] for name in steps.classes([parts])}
    times = {**{part.value: ns for part, ns in parts.ns.items()}, **idle, **waiting, **classes}
    for part, ns in times.items():
        if ns and parts.share(ns) >= steps.LEAST_SHOWN:
            yield _finding(f"{prefix}.{part}", "", None, ns, "ns", share=_share(parts.share(ns)))


def _kernels(workload: WorkloadFindings, case: CaseResult, at: str | None) -> Iterator[dict[str, Any]]:
    """Yield the time and the launches of all kernels of a case, and those of its largest kernels."""
    if case.breakdown is None:
        return
    of, total = workload.iteration.value, case.breakdown.total
    yield _finding(f"{workload.name}.kernels", "", at, total.ns, "ns", of=of, calls=number(total.calls),
                   profiler=case.breakdown.profiler, table="kernels")  # fmt: skip
    short = short_names(row.kernel for row in workload.kernels.top)
    for i, row in enumerate([row for row in workload.kernels.top if row.case == case.id][:_KERNELS], start=1):
        yield _finding(f"{workload.name}.kernel.{i}", "", None, row.ns, "ns", kernel=visible_line(short[row.kernel]),
                       share=_share(row.share), calls=number(row.calls), kernel_class=row.kernel_class)  # fmt: skip


def _find_records(workload: WorkloadFindings, full: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the records of the cases of a workload in results.json by the case."""
    return {record["case"]: record for record in full["cases"] if record["workload"] == workload.name}


def _select(record: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a record at the paths that it has, by the names of the paths."""
    chosen: dict[str, Any] = {}
    for name, path in paths.items():
        value: Any = record
        for key in path.split("."):
            value = value.get(key) if value else None
        if value is not None:
            chosen[name] = number(value) if isinstance(value, float) else value
    return chosen


def cases(workload: WorkloadFindings, full: dict[str, Any], several: bool) -> Iterator[dict[str, Any]]:
    """Yield the cases of the largest shape before those of the others, the fastest first.

    ``full`` is the document of results.json. With ``several`` workloads each case names its one.
    """
    records = _find_records(workload, full)
    shapes = sorted(workload.shapes, key=lambda shape: shape is not workload.largest)
    for shape in shapes:
        for case in shape.cases if len(workload.cases) > 1 else ():
            is_fastest = shape.win is not None and shape.win.verdict is WinVerdict.CLEAR and shape.win.best is case
            fields = {
                "workload": visible_line(workload.name) if several else "",
                "value": None,
                "unit": "ns" if case.time else "",
                "speedup": None,
                "fastest": is_fastest,
                **_select(records[case.id], _CASE),
                "status": "" if case.time else case.status,
            }
            yield {"id": visible_line(case.id), **{name: field for name, field in fields.items() if field}}


def _sort_judged(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the cases of a comparison: those that failed, those that changed most, and the others."""
    ordered = sorted(cases, key=lambda case: (case["failure"] is None, -abs((case["ratio"] or 1.0) - 1.0)))
    return [{"id": visible_line(f"{case['workload']}/{case['case']}"), **_select(case, _JUDGED)} for case in ordered]


def _files(run: Manifest) -> list[dict[str, Any]]:
    return [
        {"file": visible_line(file.source), "parser": file.parser, "launches": file.launches,
         "value": number(file.total_ns), "unit": "ns"}
        for file in run.files
    ]  # fmt: skip


# --- sections, for answers in pages ----------------------------------------------------------------------------------


def rows(section: doc.Section) -> Iterator[dict[str, Any]]:
    """Yield the sentences and the rows of the tables of a section, those of its subsections included.

    A row names its table, whose first one has the columns and the units in which their numbers are stored.
    """
    for text in _sentences(section):
        yield {"sentence": text}
    for block in section.walk(with_subsections=False):
        if isinstance(block, doc.TableBlock):
            yield from _rows(block)
    for inner in section.sections:
        yield from rows(inner)


def _rows(table: doc.TableBlock) -> Iterator[dict[str, Any]]:
    title = write_text(table.title)
    # A title names the unit that has no name.
    units = [
        column_unit if (column_unit := column.unit) and (column_unit.name or column_unit.size == 1.0) else None
        for column in table.columns
    ]
    columns = [" ".join(filter(None, [write_text(column.title) or column.id, f"[{stored_unit(unit)}]" if unit else ""]))
               for column, unit in zip(table.columns, units, strict=True)]  # fmt: skip
    for row in table.rows:
        cells = [_cell(cell, cell.unit or column.unit, unit)
                 for cell, column, unit in zip(row, table.columns, units, strict=True)]  # fmt: skip
        yield {"table": title or table.id, "columns": columns, "row": cells}


def _cell(cell: doc.TableCell, unit: Unit | None, of_column: Unit | None) -> Any:
    """Return the number or the text of a cell, followed by its other unit, note and flags where it has any.

    A number is stored in the unit in the head of its column. Where only a title or a label names its unit, it is in the
    unit that the page writes.
    """
    other = ""
    if cell.missing or cell.value is None:
        content: Any = cell.missing or write_text(cell.text) or None
    elif unit is None or (of_column and stored_unit(unit) == stored_unit(of_column)):
        content = number(cell.value)
    else:
        is_share = unit.name == PERCENT.name
        content, other = number(100 * cell.value if is_share else cell.value / unit.size), unit.name
    more = [part for part in (other, write_text(cell.note), *cell.flags) if part]
    return [content, *more] if more else content
