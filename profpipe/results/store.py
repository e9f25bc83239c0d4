"""The tables and the manifest of a run on disk."""

from __future__ import annotations

import functools
import io
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pandas as pd

from profpipe import stdio
from profpipe.errors import ConfigError
from profpipe.results import atomic, budget, schema
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

#: Which columns hold JSON: of which kind, its word, and what an empty cell stands for.
_JSON: Mapping[str, tuple[type[dict[Any, Any]] | type[list[Any]], str, str]] = {
    "params": (dict, "mapping", "{}"),
    "flags": (list, "list of texts", "[]"),
}
#: A cell that a spreadsheet would run, behind the apostrophes that texts of our own may begin with.
_FORMULA = re.compile("'*[=+\\-@\\t\\n＝＋－＠]")
_LOOKS_ESCAPED = re.compile("<(?=U\\+[0-9A-F]{4}>)")
#: Which cells are escaped.
_UNSAFE = re.compile(rf"\A{_FORMULA.pattern}|{_LOOKS_ESCAPED.pattern}|{stdio.INVISIBLE.pattern}")
#: In ns these are more years than the universe has.
_LARGEST = 1e30
#: Units of times, sizes, rates and shares.
_UNITS = ("ns", "byte", "byte/s", "flop", "flop/s", "1/s", "Hz", "W", "J", "%")
#: Parameters and flags of a case: an honest pipeline has some dozens, and the time of a report grows with them.
_MOST_PARAMETERS = 1_000
#: What pandas and the checks raise for a file that is no table of profpipe.
_DAMAGED = (ValueError, TypeError, OverflowError, RecursionError)
_REMEDY = "Restore the file as it was written. Without a copy, start the run again."


def save(folder: Path, data: Tables, manifest: Manifest, stored: Tables | None = None) -> None:
    """Write the tables as Parquet, the cases as CSV too, and then the manifest.

    So the rows of each job that the manifest names are in the tables. A table that is the same object as in ``stored``
    is on disk already and is not written again.
    """
    for table in schema.ALL:
        frame: pd.DataFrame = getattr(data, table.name)
        if stored is not None and frame is getattr(stored, table.name):
            continue
        path = folder / f"{table.name}.parquet"
        if len(frame) or not table.parquet_only:
            atomic.write(path, functools.partial(frame.to_parquet, index=False, compression="zstd"))
        else:
            # A run without rows has no such file.
            path.unlink(missing_ok=True)
        if table is schema.CASES:
            _save_csv(folder, table, frame)
        elif manifest.is_run:
            # What `--csv` has written is not of these rows.
            atomic.remove(path.with_suffix(".csv"))
    manifest.save(folder)


def save_csv(folder: Path, data: Tables) -> None:
    """Write the tables as CSV too; ``save`` has written the cases."""
    for table in schema.ALL:
        if not table.parquet_only and table is not schema.CASES:
            _save_csv(folder, table, getattr(data, table.name))


def _save_csv(folder: Path, table: schema.Table, frame: pd.DataFrame) -> None:
    atomic.write(folder / f"{table.name}.csv", functools.partial(write_csv, frame))


def as_parquet(frame: pd.DataFrame) -> bytes:
    """Return the rows of a table as the bytes of its Parquet file."""
    stream = io.BytesIO()
    frame.to_parquet(stream, index=False, compression="zstd")
    return stream.getvalue()


def write_csv(frame: pd.DataFrame, stream: BinaryIO) -> None:
    """Write ``frame`` with every text quoted, a missing number empty and a whole one without ``.0``.

    Texts are escaped, see ``_escaped``. pyarrow 26 takes an eighth of the time of ``csv.writer``, and holds no
    interpreter lock.
    """
    import pyarrow.csv

    texts = {str(name): column for name, column in frame.items() if pd.api.types.is_string_dtype(column.dtype)}
    escaped = {name: _escape_all(column) for name, column in texts.items()}
    pyarrow.csv.write_csv(pyarrow.Table.from_pandas(frame.assign(**escaped), preserve_index=False), stream)


def _escape_all(column: pd.Series) -> pd.Series:
    """Return the column with its texts escaped. Distinct texts are few."""
    changed = {text: _escaped(text) for text in column.unique() if isinstance(text, str) and _UNSAFE.search(text)}
    return column.map(lambda text: changed.get(text, text)).astype(column.dtype) if changed else column


def _escaped(text: str) -> str:
    """Return ``text`` as a spreadsheet and a terminal show it and run nothing.

    An apostrophe goes before what would be a formula, and ``<U+001B>`` is a character that acts on a terminal. What
    looks like such an escape is escaped too. OWASP, "CSV Injection".
    """
    shown = stdio.visible(_LOOKS_ESCAPED.sub("<U+003C>", text))
    return f"'{shown}" if _FORMULA.match(shown) else shown


def load(folder: Path) -> tuple[Tables, Manifest]:
    """Read a run."""
    manifest = Manifest.load(folder)
    if manifest.schema_version != schema.SCHEMA_VERSION:
        what = f"was written with schema {manifest.schema_version}; this profpipe reads {schema.SCHEMA_VERSION}."
        raise ConfigError(str(folder), what)
    frames: dict[str, Any] = {table.name: _read(folder / f"{table.name}.parquet", table) for table in schema.ALL}
    return Tables(**frames), manifest


def load_cases(folder: Path) -> pd.DataFrame:
    """Read the table `cases` of a run."""
    return _read(folder / f"{schema.CASES.name}.parquet", schema.CASES)


def _read(path: Path, table: schema.Table) -> pd.DataFrame:
    if not path.is_file():
        if table.is_new:
            return schema.empty(table)
        raise ConfigError(str(path), "is missing.", _REMEDY)
    try:
        with budget.limit(path):
            return _read_parquet(path, table)
    except budget.TooLarge as error:
        raise ConfigError(str(path), f"is more than profpipe reads: {error}.", _REMEDY) from None


def as_rows(frame: pd.DataFrame) -> str:
    """Return the rows of a table as a JSON document of its columns and rows."""
    rows = frame.astype(object).where(frame.notna(), None).to_numpy().tolist()
    return json.dumps({"columns": list(frame.columns), "rows": rows})


def from_rows(rows: list[Any], table: schema.Table, where: str) -> pd.DataFrame:
    """Return the table of the rows of ``as_rows``. Raises ConfigError, which begins with ``where``, for others."""
    try:
        return _checked(table, pd.DataFrame(rows, columns=table.names))
    except _DAMAGED as error:
        raise ConfigError(where, f"is not the table that profpipe wrote: {error}.", _REMEDY) from None


def _checked(table: schema.Table, data: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the columns and types of the table. Raises ValueError for a cell that it cannot have."""
    frame = schema.frame(table, data)
    _check_json(frame)
    for column in table.columns:
        if column.values and (wrong := ~frame[column.name].isin(column.values)).any():
            row = int(wrong.to_numpy().argmax())
            text = str(frame[column.name].iloc[row])[:80]
            raise ValueError(f"row {row + 2}, column {column.name}: {text!r} is none of {', '.join(column.values)}")
        if column.dtype == "Float64":
            _check_numbers(frame, column.name)
            values = frame[column.name].to_numpy(dtype=np.float64, na_value=math.nan)
            if np.isnan(values).sum() > frame[column.name].isna().sum():
                # A file may hold NaN beside missing values: both are unknown, and pandas tells them apart.
                frame = frame.assign(**{column.name: pd.array(values, dtype="Float64")})
    return frame


def _read_parquet(path: Path, table: schema.Table) -> pd.DataFrame:
    try:
        from pyarrow import parquet

        # pyarrow takes no path that is not UTF-8.
        with path.open("rb") as stream:
            # More cells than fit into memory: a million equal ones take a few bytes of the file.
            described = parquet.read_metadata(stream)
            sizes = (described.row_group(number).total_byte_size for number in range(described.num_row_groups))
            budget.check_bytes(path, 8 * described.num_rows * described.num_columns + sum(sizes))
            for column in map(described.schema.column, range(described.num_columns)):
                if column.max_definition_level > 1 or column.physical_type == "FIXED_LEN_BYTE_ARRAY":
                    raise ValueError(f"column {column.path[:80]} holds neither texts nor numbers")
            # Each distinct text once: kernels have a hundred rows for each name.
            read = parquet.read_table(stream, read_dictionary=described.schema.names)
            budget.check_bytes(path, sum(map(_text_bytes, read.columns)))
            return _checked(table, read.to_pandas())
    # Damaged metadata of pandas ends in a LookupError or AttributeError of pyarrow.
    except (*_DAMAGED, LookupError, AttributeError, OSError, NotImplementedError) as error:
        remedy = "Remove it: the report is then without it." if table.parquet_only else _REMEDY
        raise ConfigError(str(path), f"is not the table that profpipe wrote: {error}.", remedy) from None


def _text_bytes(column: Any) -> int:
    """Return the bytes of the texts of all rows. A long one in many rows takes little room in the file."""
    from pyarrow import compute, types

    texts = (chunk for chunk in column.chunks if types.is_dictionary(chunk.type))
    return sum(compute.sum(compute.binary_length(text.dictionary).take(text.indices)).as_py() or 0 for text in texts)


def _check_numbers(frame: pd.DataFrame, name: str) -> None:
    """Raise ValueError for a number that no time, size or count has.

    A result may have any error, and a fact of the user any value: the PSNR of equal pictures is infinite.
    """
    values = frame[name].to_numpy(dtype="float64", na_value=float("nan"))
    wrong = np.abs(values) > _LARGEST
    if name == "value":
        wrong &= frame["unit"].isin(_UNITS).to_numpy() | (frame["metric"] == "iterations").to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(f"row {row + 2}, column {name}: the number {values[row]:g} is too large")


def _check_json(frame: pd.DataFrame) -> None:
    """Raise ValueError with the row and column of a cell that is not JSON. Row 1 is the head, as in a spreadsheet."""
    for name, (kind, word, empty) in _JSON.items():
        for row, text in enumerate(frame.get(name, ()), start=2):
            try:
                parsed: Any = budget.load_json(text or empty)
            except ValueError as error:
                raise ValueError(f"row {row}, column {name}: {error}") from None
            if not isinstance(parsed, kind) or (kind is list and not all(isinstance(member, str) for member in parsed)):
                raise ValueError(f"row {row}, column {name}: is no JSON {word}")
            if len(parsed) > _MOST_PARAMETERS:
                raise ValueError(f"row {row}, column {name}: has more than {_MOST_PARAMETERS:,} {name}")
