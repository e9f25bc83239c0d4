"""The timeline of a step: lanes, which timeline.js draws and zooms, and the table of their contents."""

from __future__ import annotations

import json

from markupsafe import Markup

from profpipe.report import document as doc
from profpipe.report.html.markup import element, flat
from profpipe.report.units import time_unit


def figure(timeline: doc.Timeline, id: str, title: Markup, caption: Markup, table: Markup) -> Markup:
    """Return the timeline as data that timeline.js draws, and ``table``, which holds the time of each lane."""
    data = element("script", Markup(_json(timeline)), type="application/json")
    canvas = element("div", class_="canvas", data_timeline=id)
    values = element("details", element("summary", "Table of the lanes"), table, class_="values")
    below = element("p", caption, class_="caption") if caption else ""
    head = element("figcaption", element("h3", title, id=f"{id}-title"))
    return element("figure", head, data, canvas, below, values, class_="timeline", id=id,
                   aria_labelledby=f"{id}-title")  # fmt: skip


def _json(timeline: doc.Timeline) -> str:
    """Return the lanes for timeline.js: names and keys once, boxes as numbers in ns."""
    names = list(dict.fromkeys(box.name for lane in timeline.lanes for box in lane.boxes))
    keys = list(dict.fromkeys(box.key for lane in timeline.lanes for box in lane.boxes))
    name_at, key_at = ({text: i for i, text in enumerate(texts)} for texts in (names, keys))
    lanes = [
        {
            "title": flat(lane.title),
            "group": flat(lane.group),
            "host": lane.is_host,
            "boxes": [
                [round(box.start_ns), round(box.duration_ns), name_at[box.name], key_at[box.key], box.operations]
                for box in lane.boxes
            ],
        }
        for lane in timeline.lanes
    ]
    document = {"duration": timeline.duration_ns, "case": timeline.case, "names": list(map(flat, names)), "keys": keys,
                "lanes": lanes}  # fmt: skip
    # No text may end the element of the script.
    return json.dumps(document, separators=(",", ":")).replace("<", "\\u003c")


def lane_table(timeline: doc.Timeline) -> doc.Table:
    """Return the operations and the time of each lane by key."""
    sums: dict[tuple[str, str, str], tuple[int, float]] = {}
    for lane in timeline.lanes:
        for box in lane.boxes:
            count, ns = sums.get((lane.group, lane.title, box.key), (0, 0.0))
            sums[lane.group, lane.title, box.key] = count + box.operations, ns + box.duration_ns
    unit = time_unit(ns for _, ns in sums.values())
    columns = [doc.label("group", "rank"), doc.label("lane"), doc.label("class"), doc.count("operations"),
               doc.Column("ns", "time", unit)]  # fmt: skip
    return doc.make_table("lanes", columns, [[*names, float(n), ns] for names, (n, ns) in sums.items()])
