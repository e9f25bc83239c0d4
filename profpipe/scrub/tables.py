"""Mask secrets in the tables of a job: a program may print them, or name its ranges after them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pandas as pd

from profpipe import masking
from profpipe.results import schema
from profpipe.results.schema import Tables


def mask(tables: Tables, secrets: Mapping[str, str]) -> Tables:
    """Return ``tables`` without the known ``secrets``, and cases without what looks like a secret by its form.

    Kernel names are not searched for forms: a template argument may look like one. A table without a secret stays the
    same object.
    """
    known = masking.masker(secrets)
    frames = {
        table.name: _masked(getattr(tables, table.name), table, known, with_forms=table is schema.CASES)
        for table in schema.PARSED
    }
    origin = tables.origin
    notes, details = (tuple(map(known.mask, texts)) for texts in (origin.notes, origin.details))
    return replace(tables, **frames, origin=replace(origin, notes=notes, details=details))


def _masked(frame: pd.DataFrame, table: schema.Table, known: masking.Masker, with_forms: bool) -> pd.DataFrame:
    changed = {}
    for column in table.columns:
        if column.dtype == "str" and len(frame):
            codes, distinct = pd.factorize(frame[column.name])
            texts = [known.mask(text) if with_forms else known.mask_known(text) for text in map(str, distinct)]
            if any(a != b for a, b in zip(texts, distinct, strict=True)):
                changed[column.name] = pd.Series(texts, dtype=object).reindex(codes).set_axis(frame.index)
    return frame.assign(**changed) if changed else frame
