"""Read the NVTX ranges of an nsys export."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from profpipe.ingest import attribution
from profpipe.ingest.groupby import combine
from profpipe.ingest.nsys import activities
from profpipe.ingest.nsys.columns import Source, Strings, read_numbers, read_texts
from profpipe.results import schema

#: Push/pop and start/end ranges, and both kinds imported from NVTX text files.
_RANGE_EVENTS: Final = (59, 60, 70, 71)
_DOMAIN_EVENTS: Final = (75, 76)
#: Later times are damaged: their sums and differences would overflow.
_LATEST_NS: Final = 2**61


def read(export: Source, strings: Strings, latest: int) -> tuple[attribution.Ranges, list[str]]:
    """Return the ranges of single threads, and notes about the others.

    A range without an end lasts to ``latest``, or to its start where this is later.
    """
    events = pd.DataFrame(
        read_numbers(
            export,
            "NVTX_EVENTS",
            {
                "start": np.int64, "end": np.int64, "globalTid": np.int64, "endGlobalTid": np.int64,
                "eventType": np.int32, "domainId": np.int32, "textId": np.int32,
            },
        )
    )  # fmt: skip
    text, texts = read_texts(export, "NVTX_EVENTS", "text", len(events))
    events["name"], recorded = _range_names(events, text, texts, strings)
    found = events[events["eventType"].isin(_RANGE_EVENTS)]
    notes = []
    if found.empty and events["eventType"].isin(_DOMAIN_EVENTS).any():
        notes.append(
            "NVTX domains were made but no range was recorded: nsys 2022 and 2023 do not see the Python package nvtx "
            "from 0.2.12 on; annotate with torch.cuda.nvtx, or install nvtx<0.2.12"
        )
    sane = (found["start"] > -_LATEST_NS) & (found["end"] < _LATEST_NS)
    unended = sane & (found["end"] == activities.NULL)
    found = found.assign(end=found["end"].where(~unended, found["start"].clip(lower=latest)))
    sane &= found["end"] >= found["start"]
    one_thread = found["endGlobalTid"].isin([activities.NULL]) | (found["endGlobalTid"] == found["globalTid"])
    counted = {
        "ranges have no end and are taken to last until the capture's end": unended & sane,
        "ranges end before they begin and were left out": ~sane,
        "ranges end in another thread than they began in; they belong to no thread and were left out, as nsys does": (
            sane & ~one_thread
        ),
    }
    notes += [f"{rows.sum()} {what}" for what, rows in counted.items() if rows.any()]
    found = found[sane & one_thread]
    thread = found["globalTid"].to_numpy()
    return attribution.Ranges(
        start=found["start"].to_numpy(),
        end=found["end"].to_numpy(),
        thread=thread,
        process=thread & ~activities.THREAD_BITS,
        name=found["name"].to_numpy(),
        names=[schema.range_name(name) for name in recorded],
        recorded=recorded,
    ), notes


def _range_names(
    events: pd.DataFrame, text: npt.NDArray[np.int64], texts: list[str], strings: Strings
) -> tuple[npt.NDArray[np.int32], list[str]]:
    """Return (number of each event's name, names). Outside the default domain nsys prints ``domain:name``.

    Counters are removed, but for the numbers of steps.
    """
    process = events["globalTid"].to_numpy() & ~activities.THREAD_BITS
    text_id, domain = events["textId"].to_numpy(), events["domainId"].to_numpy()
    codes, firsts = combine(text, text_id, domain, process)
    registered = strings.of(text_id[firsts])
    plain = [texts[t] or r or "" for t, r in zip(text[firsts].tolist(), registered, strict=True)]
    created = np.flatnonzero(events["eventType"].to_numpy() == _DOMAIN_EVENTS[0])
    domains = {(process[i], domain[i]): plain[codes[i]] for i in created}
    names: dict[str, int] = {}
    number = []
    for i, name in zip(firsts, plain, strict=True):
        prefix = domains.get((process[i], domain[i]), "") if domain[i] > 0 else ""
        number.append(names.setdefault(_range_name(prefix, name), len(names)))
    return np.array(number, dtype=np.int32)[codes], list(names)


def _range_name(domain: str, name: str) -> str:
    if name.startswith((schema.CASE_PREFIX, schema.STEP_PREFIX)):
        return name
    return f"{domain}:{schema.range_name(name)}" if domain else schema.range_name(name)
