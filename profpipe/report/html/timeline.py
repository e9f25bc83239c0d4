"""The timeline of a step: lanes, which timeline.js draws and zooms, and the table of their contents."""

from __future__ import annotations

import json
from typing import Any

from markupsafe import Markup

from profpipe.analysis.timeline import Event
from profpipe.report import document as doc
from profpipe.report.markup import cut, element, empty, flat, short
from profpipe.report.svg.palette import key_class
from profpipe.report.units import time_unit

#: Characters of a name. Templates of kernels can have thousands.
_MOST_CHARACTERS = 500

_ACTIONS = {
    "gap": "Next largest gap", "in": "Zoom in", "out": "Zoom out", "left": "Earlier", "right": "Later", "all": "Whole",
}  # fmt: skip
_KEYS = (
    "Drag to move. The mouse wheel zooms after a click into the timeline, or with Ctrl. Keys: + and − zoom, arrows go"
    " from box to box, Shift with an arrow moves, g goes to the next largest gap, 0 shows the whole."
)


def figure(timeline: doc.Timeline, id: str, title: Markup, caption: Markup, table: Markup, case: str) -> Markup:
    """Return the timeline as data that timeline.js draws, and ``table``, which holds the time of each lane.

    ``case`` is the id of the page of its case.
    """
    data = element("script", Markup(_json(timeline)), type="application/json")
    canvas = element("div", class_="canvas", data_timeline=id)
    buttons = (element("button", text, type="button", data_action=action) for action, text in _ACTIONS.items())
    scripted = element(
        "div", element("div", *buttons, class_="actions"), canvas, element("p", class_="readout", role="status"),
        element("p", _KEYS, class_="caption", id=f"{id}-keys"), class_="scripted", hidden=True,
    )  # fmt: skip
    values = element("details", element("summary", "Table of the lanes"), table, class_="values")
    below = element("p", caption, class_="caption") if caption else ""
    head = element("figcaption", element("h3", title, id=f"{id}-title"))
    return element("figure", head, below, _legend(timeline), data, scripted, values, class_="timeline", id=id,
                   data_of=case or None, aria_labelledby=f"{id}-title")  # fmt: skip


def _legend(timeline: doc.Timeline) -> Markup:
    def entry(key: str, label: str) -> Markup:
        patch = empty("rect", width="16", height="12", y="2", class_="piece")
        swatch = element("svg", patch, viewBox="0 0 16 16", width=16, height=16, class_="swatch", aria_hidden="true")
        return element("button", swatch, short(label, 60), type="button", data_series=flat(key), aria_pressed="false",
                       class_=key_class(key))  # fmt: skip

    return element("div", *(entry(*each) for each in timeline.labels.items()), class_="legend")


def _json(timeline: doc.Timeline) -> str:
    """Return the lanes for timeline.js: names and keys once, boxes as numbers in ns."""
    names = list(dict.fromkeys(box.name for lane in timeline.lanes for box in lane.boxes))
    keys = list(timeline.labels)
    name_at, key_at = ({text: i for i, text in enumerate(texts)} for texts in (names, keys))
    lanes = [
        {
            "title": flat(lane.title),
            "group": flat(lane.group),
            "kind": lane.kind.value,
            "boxes": [_box(box, name_at[box.name], key_at[box.key]) for box in lane.boxes],
        }
        for lane in timeline.lanes
    ]
    document = {
        "duration": round(timeline.duration_ns),
        "names": [cut(flat(name), _MOST_CHARACTERS) for name in names],
        "keys": list(map(flat, keys)),
        "numbered": [[lane, round(start)] for lane, start in timeline.numbered],
        "labels": list(map(flat, timeline.labels.values())),
        "classes": list(map(key_class, keys)),
        "lanes": lanes,
    }
    # No text may end the element of the script.
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def _box(box: Event, name: int, key: int) -> list[Any]:
    """Return the numbers of a box, as timeline.js names them; without those at the end that are unknown."""
    found: list[Any] = [round(box.start_ns), round(box.duration_ns), name, key]
    more = [box.count, round(box.busy_ns), _rounded(box.launched_ns), _rounded(box.bytes)]
    if box.count == 1:
        more[1] = None
    while more and more[-1] is None:
        more.pop()
    return found + (more if more != [1] else [])


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def lane_table(timeline: doc.Timeline) -> doc.Table:
    """Return the operations and the time of each lane by key."""
    rows = [
        (lane.group, lane.title, timeline.labels[key], float(count), ns)
        for lane in timeline.lanes
        for key, (count, ns) in lane.totals.items()
    ]
    unit = time_unit(row[-1] for row in rows)
    columns = [doc.label("group", "GPU"), doc.label("lane"), doc.label("class"), doc.count("operations"),
               doc.Column("ns", "time", unit)]  # fmt: skip
    return doc.make_table("lanes", columns, rows)
