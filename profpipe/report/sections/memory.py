"""Who holds the memory of the GPU: at the peak, over two steps, and where an allocation failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from profpipe.analysis.findings import WorkloadFindings
from profpipe.analysis.memory import CaseMemory, Holder, MemoryAt, find_fit, find_memory
from profpipe.report import document as doc
from profpipe.report.labels import case_text, fill, plural
from profpipe.report.units import percent, size_unit
from profpipe.results.schema import MemoryPart

#: Holders of a table, and cases that stand on the long page.
_MOST_HOLDERS, _MOST_BLOCKS, _CASES = 14, 10, 12
#: Parts that a sentence names, and the share of the memory in use from which something is named.
_MOST_PARTS, _LEAST = 4, 0.01
#: Parts whose names are those of modules.
_OF_MODULES = (MemoryPart.ACTIVATIONS, MemoryPart.KEPT)

_NAMES: Mapping[MemoryPart, str] = {
    MemoryPart.OPTIMIZER: "states of the optimizer",
    MemoryPart.KEPT: "kept between calls",
    MemoryPart.WORKSPACE: "workspaces of cuBLAS",
    MemoryPart.CACHED: "cached, free",
    MemoryPart.FRAGMENTED: "free between blocks",
    MemoryPart.OUTSIDE: "other processes and contexts",
}
#: In sentences.
_SAID: Mapping[MemoryPart, str] = {
    MemoryPart.KEPT: "tensors kept between calls",
    MemoryPart.TEMPORARY: "temporary tensors",
    MemoryPart.OTHER: "other tensors",
}
#: What asked for memory, by the part that it would have been.
_ASKS: Mapping[MemoryPart, str] = {
    MemoryPart.ACTIVATIONS: " in the forward pass",
    MemoryPart.GRADIENTS: " in the backward pass",
    MemoryPart.OPTIMIZER: " in the step of the optimizer",
}
#: The colours of the parts: those of kernel classes.
_KEYS: Mapping[MemoryPart, str] = {
    MemoryPart.PARAMETERS: "attention",
    MemoryPart.OPTIMIZER: "optimizer",
    MemoryPart.WORKSPACE: "memset",
    MemoryPart.OTHER: "rest",
    MemoryPart.GRADIENTS: "copy",
    MemoryPart.KEPT: "conv",
    MemoryPart.ACTIVATIONS: "gemm",
    MemoryPart.TEMPORARY: "elementwise",
}
_PASSES: Mapping[str, str] = {"forward": "forward pass", "backward": "backward pass", "optimizer": "optimizer"}


def _name(part: MemoryPart) -> str:
    return _NAMES.get(part, part.value)


def _say(part: MemoryPart) -> str:
    return _SAID.get(part, _name(part))


def _size(size: float) -> str:
    return size_unit([size]).with_name(size)


def _memories(workload: WorkloadFindings) -> Iterator[CaseMemory]:
    table = workload.recorded.tables.memory
    for case in workload.cases if len(table) else ():
        if memory := find_memory(table, case.id):
            yield memory


# --- sentences -------------------------------------------------------------------------------------------------------


def answer(workload: WorkloadFindings) -> doc.Text:
    """Return what ran out of memory and what held it, else who holds the peak; empty where no memory was recorded."""
    failed = [memory for memory in _memories(workload) if memory.failure and memory.asked]
    if not failed:
        return next(iter(remarks(workload)), "")
    memory = max(failed, key=lambda memory: memory.failure.allocated if memory.failure else 0.0)
    assert memory.failure is not None
    asked, held = memory.asked[-1], memory.failure
    parts = [f"{_say(part)} {_size(size)}" for part, size in held.parts[:_MOST_PARTS] if size > _LEAST * held.allocated]
    who = doc.join([doc.Code(text) for text in (asked.name, asked.place) if text], last=" at ") or "something"
    left = f", and {_size(memory.free)} of {_size(memory.capacity)} were free" if memory.capacity else ""
    template = f"Out of memory{_ASKS.get(asked.part, '')}: {{}} asked for {_size(asked.size)}{left}. Held: {{}}."
    return fill(template, who, doc.join(parts))


def remarks(workload: WorkloadFindings) -> Iterator[doc.Text]:
    """Yield who holds the peak, what failed, what would help, what grows, and what would fit."""
    memories = list(_memories(workload))
    if not memories:
        return
    memory = max(memories, key=lambda memory: memory.peak.allocated)
    yield from _describe_peak(memory)
    for failed in memories:
        yield from _describe_failure(failed)
    if leak := next((memory for memory in memories if memory.growth), None):
        yield from _describe_growth(leak)
    yield from _describe_fit(workload, memories)


def _describe_peak(memory: CaseMemory) -> Iterator[doc.Text]:
    leading = memory.peak.leading
    if leading is None:
        return
    of = fill(" of {}", doc.Code(leading.name)) if leading.name and leading.part in _OF_MODULES else ""
    at = fill(" ({})", doc.Code(leading.place)) if leading.place else ""
    total, share = _size(memory.peak.allocated), percent(leading.size / memory.peak.allocated)
    yield fill(f"At the peak of {total} {_say(leading.part)}{{}} hold {share} %{{}}.", of, at)


def _describe_failure(memory: CaseMemory) -> Iterator[doc.Text]:
    """Yield how often an allocation failed, and what would have left room for the last one."""
    if memory.failure is None or not memory.asked:
        return
    asked = memory.asked[-1]
    if len(memory.asked) > 1:
        last = doc.Code(asked.place) if asked.place else "an unknown line"
        yield fill(f"{plural(len(memory.asked), 'allocation')} failed, the last of them at {{}}.", last)
    unused = memory.failure.part(MemoryPart.CACHED) + memory.failure.part(MemoryPart.FRAGMENTED)
    if unused >= asked.size > memory.largest_free:
        piece = _size(memory.largest_free)
        yield f"torch has {_size(unused)} free, in pieces of at most {piece}: too small for {_size(asked.size)}."
    for advice in memory.advice:
        size = _size(advice.size)
        if advice.size < max(_LEAST * memory.failure.allocated, asked.size):
            continue
        if advice.name == "outside":
            yield f"Other processes and CUDA contexts hold {size} of the GPU."
        elif advice.name == "bfloat16":
            yield f"Autocast to bfloat16 would free about {size} of activations."
        elif advice.name == "expandable_segments":
            setting = doc.Code("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
            yield fill(f"{{}} would make up to {size} usable.", setting)
        else:
            yield fill(f"Checkpointing of {{}} would free about {size}.", doc.Code(advice.name))


def _describe_growth(memory: CaseMemory) -> Iterator[doc.Text]:
    total, largest, last = sum(holder.size for holder in memory.growth), memory.growth[0], memory.growth_last
    most = fill("most of it allocated at {}", doc.Code(largest.place)) if largest.place else "from an unknown line"
    kept = fill(", the last at {}", doc.Code(last.place)) if last and last.place not in ("", largest.place) else ""
    yield fill(f"Each step leaves {_size(total)} behind, {{}}{{}}: something keeps it.", most, kept)


def _describe_fit(workload: WorkloadFindings, memories: list[CaseMemory]) -> Iterator[doc.Text]:
    params = {case.id: case.params for case in workload.cases}
    for axis in dict.fromkeys(axis for memory in memories for axis in params[memory.case]):
        cases = [(params[memory.case].get(axis), memory) for memory in memories if memory.failure is None]
        numeric = [(float(value), memory) for value, memory in cases if isinstance(value, (int, float))]
        others = {tuple(v for name, v in params[memory.case].items() if name != axis) for _, memory in numeric}
        fit = find_fit(axis, numeric) if len(others) == 1 else None
        if fit is None:
            continue
        upper = f" to {fit.most}" if fit.most > fit.least else ""
        grows = doc.join(f"{_say(part)} {_size(size)}" for part, size in fit.growing[:_MOST_PARTS])
        fixed = f"{_size(fit.fixed)} do not grow with it" if fit.fixed > 0 else "nothing is fixed"
        said = (
            f"The largest {axis} that fits is {fit.least}{upper}: {fixed}, and each 1 takes {_size(fit.slope)} ({{}})."
        )
        yield fill(said, grows)


# --- the section -----------------------------------------------------------------------------------------------------


def memory(workload: WorkloadFindings) -> doc.Section:
    """Return what holds the memory of the first case in full, of others folded; empty where none was recorded."""
    memories = list(_memories(workload))
    if not memories:
        return doc.Section("memory_peak", "", workload=workload.name)
    texts = {case.id: case_text(case) for case in workload.cases}
    first, *others = sorted(memories, key=lambda memory: memory.failure is None)
    blocks: list[doc.Block] = [*_tables(first)]
    if picture := _draw(workload, first):
        blocks.append(picture)
    blocks += [doc.Details(texts[memory.case], tuple(_tables(memory))) for memory in others[:_CASES]]
    note = (
        "The parts in use add up to what torch's allocator had given out. Shares are of that sum. Lines are those that"
        " allocated most of a row."
    )
    return doc.make_section("memory_peak", "Who holds the memory", blocks, note, workload.name)


def _tables(memory: CaseMemory) -> Iterator[doc.TableBlock]:
    if memory.failure is not None:
        yield _table(memory.failure, f"failure {memory.case}", "When the last allocation failed")
        yield _block_table(memory.failure, f"failure_blocks {memory.case}")
    else:
        yield _table(memory.peak, f"peak {memory.case}", "At the peak")
        yield _block_table(memory.peak, f"peak_blocks {memory.case}")


def _table(at: MemoryAt, id: str, title: str) -> doc.TableBlock:
    used = [holder for holder in at.holders if not holder.is_unused]
    rows = used[:_MOST_HOLDERS]
    rows += _sum_others(used[_MOST_HOLDERS:])
    rows += [holder for holder in at.holders if holder.is_unused]
    unit = size_unit([at.allocated])
    columns: doc.Columns[Holder] = [
        (doc.label("part"), lambda holder: _name(holder.part)),
        (doc.words("name", "of"), lambda holder: doc.Code(holder.name) if holder.name else ""),
        (doc.words("place", "line"), lambda holder: doc.Code(holder.place) if holder.place else ""),
        (doc.count("blocks"), lambda holder: holder.blocks or ""),
        (doc.number("size", "", unit), lambda holder: holder.size),
        (doc.percent("share", ""), lambda holder: "" if holder.is_unused else holder.size / at.allocated),
    ]
    return doc.table_of(id, rows, columns, f"{title}: {_size(at.allocated)} in use")


def _sum_others(holders: list[Holder]) -> list[Holder]:
    """Return the rest of each part as one row."""
    sums: dict[MemoryPart, list[Holder]] = {}
    for holder in holders:
        sums.setdefault(holder.part, []).append(holder)
    return [
        Holder(part, "" if len(rest) > 1 else rest[0].name, "", sum(h.size for h in rest), sum(h.blocks for h in rest))
        for part, rest in sums.items()
    ]


def _block_table(at: MemoryAt, id: str) -> doc.TableBlock:
    rows = at.blocks[:_MOST_BLOCKS]
    unit = size_unit(holder.size / max(holder.blocks, 1) for holder in rows)
    columns: doc.Columns[Holder] = [
        (doc.label("part"), lambda holder: _name(holder.part)),
        (doc.words("name", "of"), lambda holder: doc.Code(holder.name) if holder.name else ""),
        (doc.words("place", "line"), lambda holder: doc.Code(holder.place) if holder.place else ""),
        (doc.number("each", "each", unit), lambda holder: holder.size / max(holder.blocks, 1)),
        (doc.count("blocks", "number"), lambda holder: holder.blocks),
        (doc.number("size", "together", size_unit(h.size for h in rows)), lambda holder: holder.size),
    ]
    return doc.table_of(id, rows, columns, "Largest blocks", doc.OnPage.DETAILS)


def _draw(workload: WorkloadFindings, memory: CaseMemory) -> doc.Chart | None:
    """Return the memory of two steps by part, as areas that lie on each other."""
    if len(memory.points) < 2:
        return None
    begin = memory.points[0][0]
    parts = [part for part in _KEYS if any(sizes.get(part) for _, _, sizes in memory.points)]
    series = tuple(
        doc.Series(_name(part), _KEYS[part], tuple(
            doc.Mark((at_ns - begin) / 1e6, sizes.get(part, 0.0), note=_PASSES.get(during, ""))
            for at_ns, during, sizes in memory.points
        ))
        for part in parts
    )  # fmt: skip
    return doc.Chart(
        f"{workload.name}-memory",
        "Memory over two steps",
        doc.ChartKind.AREAS,
        doc.Axis("ms", is_measured=True),
        doc.Axis("allocated", None, quantity="byte"),
        {"": series},
    )
