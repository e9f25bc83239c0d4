"""Shorten the texts of tables that no page can show: names of a megabyte make every page as slow as a huge file."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any, Final

import pandas as pd

from profpipe.results import budget, schema
from profpipe.results.schema import Tables

#: Characters of a cell that the analysis and the pages see. The files keep all of them.
LONGEST: Final = 10_000
#: Columns that hold JSON: their texts are shortened one by one.
_JSON: Final = ("params", "flags")


def shorten(data: Tables) -> Tables:
    """Return the tables with the beginning of each longer text, which stays different from other texts."""
    frames = {table.name: _shorten_frame(getattr(data, table.name), table) for table in schema.ALL}
    changed: dict[str, Any] = {name: frame for name, frame in frames.items() if frame is not getattr(data, name)}
    return replace(data, **changed) if changed else data


def _shorten_frame(frame: pd.DataFrame, table: schema.Table) -> pd.DataFrame:
    texts = [column.name for column in table.columns if column.dtype == "str"]
    long = [name for name in texts if _longest(frame[name]) > LONGEST]
    if not long:
        return frame
    return frame.assign(**{name: frame[name].map(_json if name in _JSON else _text) for name in long})


def _longest(texts: pd.Series[Any]) -> int:
    if not len(texts):
        return 0
    if isinstance(texts.dtype, pd.StringDtype):
        # Each text of such a column is made anew, which takes a hundred times as long as to measure it in place.
        return int(texts.str.len().max())
    return max(map(len, texts))


def _text(text: str) -> str:
    if len(text) <= LONGEST:
        return text
    checksum = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    end = f"… ({len(text):,} characters, {checksum})"
    return f"{text[: LONGEST - len(end)]}{end}"


def _json(text: str) -> str:
    return text if len(text) <= LONGEST else json.dumps(_node(budget.load_json(text)))


def _node(node: Any) -> Any:
    if isinstance(node, dict):
        return {_text(key): _node(value) for key, value in node.items()}
    if isinstance(node, list):
        return list(map(_node, node))
    return _text(node) if isinstance(node, str) else node
