"""The hostile corpus: files of every format with hostile names and numbers, damage, and far too much of something.

Every file is made from those of ``seed_files``. The small ones that ``tests/corpus`` keeps are written by
``benchmarks/hostile.py --keep``.
"""

import functools
import gzip
import itertools
import json
import random
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import seed_files
from nsys_exports import Export
from seed_files import Texts

DATA = Path(__file__).parent / "data"
REPORT = DATA / "ncu-2025.3" / "sdpa_h200.ncu-rep"


@dataclass(frozen=True)
class Hostile:
    """A file of the corpus. ``write`` puts it into a folder and returns its path; a large one takes seconds to read."""

    format: str
    name: str
    write: Callable[[Path], Path]
    is_large: bool = False

    @property
    def label(self):
        return f"{self.format}: {self.name}"


def writer(write):
    """Let a function that writes into a folder be called with its other arguments first."""
    return lambda *args, **more: lambda folder: write(folder, *args, **more)


def doubling_name(times):
    """Return a mangled name of ``P<P<...>, P<...>>``, whose substitutions double its length ``times`` times."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1PIiiE" + "".join(f"S_IS{digits[i]}_S{digits[i]}_E" for i in range(times))


NAMES = {
    "doubling": doubling_name(30),
    "controls": "a\x08\x1b[2J\x9d8;;x\x07\u202eb\u2028c\x7f",
    "NUL": "a\0b",
    "line ends": "a\nb\r\nprofpipe: c",
    "half a surrogate pair": "a\ud800b",
    "mathtext": r"$A_$B \frac{",
    "markup": "<script>alert(1)</script>]]>&amp;|`*_[x](javascript:y)http://evil.example",
    "formats": "%s%n{}{0}${HOME}{{x}}{% raw %}$(id)`id`",
    "formula": '=HYPERLINK("http://evil.example")',
    "path": "../../../etc/passwd\\..\\x",
    "quotes": "'\"`,;\t\\",
    "empty": "",
    "blank": " \t ",
    "case of all": "profpipe:",
    "case of signs": "profpipe:a=b=c,d,=,,%2C%00",
    "nan": "nan",
    "brackets": "f<(" * 300,
    "digits": "x<" + "1" * 50_000 + ">(int)",
    "namespaces": "::".join(["ns"] * 12_000) + "<int>(int)",
    "operators": "f(" + "operator " * 6_000,
    "lambdas": "x<(" + "'lambda" * 7_000 + ">(",
    "a field beyond the limit of CSV": "m" * 140_000,
    "a million": "m" * 1_000_000,
}
NUMBERS = {
    "negative": "-1",
    "minus zero": "-0.0",
    "beyond 64 bits": "9223372036854775808",
    "below 64 bits": "-9223372036854775809",
    "the largest": "9223372036854775807",
    "beyond a float": "1e400",
    "not a number": "NaN",
    "infinite": "Infinity",
    "400 digits": "9" * 400,
    "5,000 digits": "9" * 5_000,
    "a fraction": "0.1e-300",
    "hexadecimal": "0x10",
    "underscores": "1_000",
    "Arabic digits": "١٢٣",
    "missing": "",
    "a word": "x",
    "null": "null",
    "a list": "[[1]]",
    "thousands": "1.234.567,8",
}


def _half(data):
    return data[: len(data) // 2]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": _half,
    "without its beginning": lambda data: data[len(data) // 2 :],
    "without its last byte": lambda data: data[:-1],
    "NUL in places of e": lambda data: data.replace(b"e", b"\0"),
    "not UTF-8": lambda data: data.replace(b"a", b"\xff\xfe"),
    "UTF-16": lambda data: b"\xff\xfe" + data.decode("latin-1").encode("utf-16-le"),
    "twice": lambda data: data * 2,
    "NUL behind it": lambda data: data + b"\0" * 4096,
    "other letters": lambda data: data.swapcase(),
}


# --- texts -----------------------------------------------------------------------------------------------------------

#: Bytes of a large file.
LARGE = 20_000_000


def _unit(format):
    """Return what is before the row of a launch, the row, and what is behind it. ``@K@`` is the name of the kernel."""
    make = seed_files.TEXTS[format][1]
    one, two = (make(Texts(kernel="@K@", rows=rows)) for rows in (1, 2))
    at = next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    return one[:at], two[at : at + len(two) - len(one)], one[at:]


def _write_pieces(path, pieces):
    with path.open("w", encoding="utf-8", newline="") as stream:
        for piece in pieces:
            stream.write(piece)


@writer
def _fill(folder, format, filling):
    """Write a file with so much ``filling`` between two rows."""
    before, unit, behind = _unit(format)
    path = folder / seed_files.file_name(format)
    times = LARGE // len(filling)
    _write_pieces(path, iter([before, unit.replace("@K@", "k"), filling * times, behind.replace("@K@", "k")]))
    return path


@writer
def _rows(folder, format, *, has_names):
    """Write a file of very many launches, of one kernel or of as many."""
    before, unit, behind = _unit(format)
    path = folder / seed_files.file_name(format)
    times = LARGE // len(unit)

    def pieces():
        yield before
        if has_names:
            yield from (unit.replace("@K@", f"kern_{i}") for i in range(times))
        else:
            yield unit.replace("@K@", "k") * times
        yield behind.replace("@K@", "k")

    _write_pieces(path, pieces())
    return path


#: What a large text is filled with.
FILLINGS = {
    "line ends": "\n",
    "blanks": " ",
    "letters": "x",
    "digits": "9",
    "quotes": '"',
    "commas": ",",
    "empty objects": "{},",
    "opening brackets": "[",
    "messages of ncu": "==PROF== x\n",
    "escapes": "\\u0000",
    "signs of 4 bytes": "\U0001f600",
    "carriage returns": "\r",
    "tables": "\n\nCUDA Kernel Statistics:\n\n",
}
#: Large files of each text format: a part of the fillings, so that all meet each reader of lines, CSV and JSON.
_FILLINGS_EACH = 2


def _large_texts(format, number, *, has_all):
    yield Hostile(format, "very many launches", _rows(format, has_names=False), is_large=True)
    if "@K@" in _unit(format)[1]:
        yield Hostile(format, "very many names", _rows(format, has_names=True), is_large=True)
    words = list(FILLINGS.items())
    chosen = words if has_all else [words[(number * _FILLINGS_EACH + i) % len(words)] for i in range(_FILLINGS_EACH)]
    for name, filling in chosen:
        yield Hostile(format, f"{LARGE // 1_000_000} MB of {name}", _fill(format, filling), is_large=True)


@writer
def _damaged(folder, format, damage):
    path = seed_files.write(folder, format)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        file.write_bytes(damage(file.read_bytes()))
    return path


def _with(format, texts):
    return lambda folder: seed_files.write(folder, format, texts)


# --- databases -------------------------------------------------------------------------------------------------------

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i"
_LAUNCHES = {
    "nsys SQLite": "CUPTI_ACTIVITY_KIND_KERNEL",
    "rocpd": "rocpd_kernel_dispatch_00000000_0000_0000_0000_00000000000a",
    "rocprof v1, database": "KERN",
}
_STRINGS = {"nsys SQLite": "StringIds", "rocpd": "rocpd_string_00000000_0000_0000_0000_00000000000a"}


@writer
def _changed(folder, format, *statements):
    """Write a database and runs statements in it."""
    path = seed_files.write(folder, format)
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)
    return path


@writer
def _view_in_place(folder, format, table):
    path = seed_files.write(folder, format)
    with closing(sqlite3.connect(path)) as database:
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        database.execute(f'DROP TABLE "{table}"')
        chosen = ", ".join(f'i AS "{column}"' for column in columns)
        database.execute(f'CREATE VIEW "{table}" AS {ENDLESS.replace("SELECT i", f"SELECT {chosen}", 1)} FROM n'
                         .replace(f"SELECT {chosen} + 1", "SELECT i + 1"))  # fmt: skip
        database.commit()
    return path


@writer
def _generated(folder, format, table):
    """Write a table in which a column is computed from a gigabyte whenever it is read."""
    path = seed_files.write(folder, format)
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute(f'SELECT * FROM "{table}"').fetchall()
        columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
        database.execute(f'DROP TABLE "{table}"')
        named = ", ".join(f'"{column}"' for column in columns[:-1])
        database.execute(f'CREATE TABLE "{table}" ({named})')
        marks = ", ".join("?" * (len(columns) - 1))
        database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', [row[:-1] for row in rows] * 1000)
        # Added last: to insert a row computes the column too.
        database.execute("PRAGMA writable_schema = ON")
        computed = f'"{columns[-1]}" AS (length(hex(zeroblob(400000000))))'
        changed = (f'CREATE TABLE "{table}" ({named}, {computed})', table)
        database.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", changed)
        database.commit()
    return path


def _interior(child, size):
    """Return an inner page of a table, all of whose children are the page ``child``."""
    cell = struct.pack(">I", child) + b"\x01"
    count = (size - 12) // (len(cell) + 2)
    begin = size - count * len(cell)
    pointers = b"".join(struct.pack(">H", begin + i * len(cell)) for i in range(count))
    head = b"\x05" + struct.pack(">HHHB", 0, count, begin, 0) + struct.pack(">I", child)
    page = head + pointers
    return page + b"\0" * (begin - len(page)) + cell * count


@writer
def _shared_pages(folder, format, table, *, text=0):
    """Write a table whose inner pages share their children, so that it has 10^14 rows.

    With ``text``, every row of a page is the same row with a text of so many bytes.
    """
    path = seed_files.write(folder, format)
    with closing(sqlite3.connect(path)) as database:
        if text:
            column = next(
                r[1] for r in database.execute(f'PRAGMA table_info("{table}")') if r[1] in ("value", "string")
            )
            database.execute(f'DELETE FROM "{table}"')
            database.execute(f'INSERT INTO "{table}" ("{column}") VALUES (?)', ("x" * text,))
            database.commit()
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    data = bytearray(path.read_bytes())
    leaf = bytearray(data[(root - 1) * size : root * size])
    if text:
        _repeat_cell(leaf)
    pages, levels = len(data) // size, 6
    for level in range(levels - 1):
        data += _interior(pages + level + 2, size)
    data += leaf
    data[(root - 1) * size : root * size] = _interior(pages + 1, size)
    data[28:32] = struct.pack(">I", len(data) // size)
    path.write_bytes(data)
    return path


def _repeat_cell(page):
    """Let very many rows of a leaf be its first one."""
    (cell,) = struct.unpack_from(">H", page, 8)
    count = (cell - 8) // 2
    struct.pack_into(">H", page, 3, count)
    for i in range(count):
        struct.pack_into(">H", page, 8 + 2 * i, cell)


@writer
def _pushes(folder, count):
    """Write ranges without an end, each inside the one before."""
    export = Export()
    for i in range(count):
        export.range(10 * i, None, f"step {i}")
        export.launch(10 * i + 2, i + 1)
    return export.write_sqlite(folder / "export.sqlite")


@writer
def _names(folder, count, name):
    export = Export()
    for i in range(count):
        export.launch(100 * i, i + 1, name(i))
    return export.write_sqlite(folder / "export.sqlite")


@writer
def _ranges(folder, count, name):
    export = Export()
    for i in range(count):
        export.range(100 * i, 100 * i + 90, name(i))
        export.launch(100 * i + 10, i + 1)
    return export.write_sqlite(folder / "export.sqlite")


def _databases():
    for format, table in _LAUNCHES.items():
        quoted = f'"{table}"'
        statements = {
            "no rows": [f"DELETE FROM {quoted}"],
            "no table of launches": [f"DROP TABLE {quoted}"],
            "a virtual table": ["CREATE VIRTUAL TABLE extra USING fts5(a)", f"DROP TABLE {quoted}",
                                f"CREATE VIRTUAL TABLE {quoted} USING fts5(start)"],
            "a trigger": [f"CREATE TRIGGER t AFTER INSERT ON {quoted} BEGIN DELETE FROM {quoted}; END"],
            "300 more tables": [f'CREATE TABLE "t{i}\x1b[2J" (a)' for i in range(300)],
            "an index of an expression": [f"CREATE INDEX i ON {quoted} (length(hex(zeroblob(1000))))"],
            "another schema format": ["PRAGMA writable_schema = ON",
                                      "UPDATE sqlite_master SET sql = 'CREATE TABLE x' || sql"],
            "a table twice": ["PRAGMA writable_schema = ON",
                              "INSERT INTO sqlite_master SELECT * FROM sqlite_master WHERE type = 'table'"],
            "names that are no UTF-8": ["PRAGMA writable_schema = ON", "UPDATE sqlite_master SET sql = "
                                        "CAST(replace(CAST(sql AS BLOB), 'INTEGER', x'fffe') AS TEXT)"],
        }  # fmt: skip
        for name, list_ in statements.items():
            yield Hostile(format, name, _changed(format, *list_))
        yield Hostile(format, "an endless view", _view_in_place(format, table))
        yield Hostile(format, "a column that computes", _generated(format, table), is_large=True)
        yield Hostile(format, "10^14 rows in shared pages", _shared_pages(format, table), is_large=True)
    for format, table in _STRINGS.items():
        yield Hostile(format, "10^14 texts in shared pages", _shared_pages(format, table), is_large=True)
        yield Hostile(format, "10^14 long texts in shared pages", _shared_pages(format, table, text=1_000_000), True)
    for column in ("start", "end", "deviceId", "globalPid", "correlationId", "demangledName", "streamId"):
        for kind, value in {"text": "'x'", "blob": "x'00ff'", "fraction": "1.5", "large": str((1 << 63) - 1),
                            "NULL": "NULL", "negative": "-5"}.items():  # fmt: skip
            statement = f'UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET "{column}" = {value}'
            yield Hostile("nsys SQLite", f"{column}: {kind}", _changed("nsys SQLite", statement))
    yield Hostile("nsys SQLite", "20,000 pushes without pops", _pushes(20_000), is_large=True)
    yield Hostile("nsys SQLite", "300,000 names", _names(300_000, lambda i: f"kern_{i}"), is_large=True)
    yield Hostile("nsys SQLite", "3,000 long names", _names(3_000, lambda i: f"{i}" * 10_000), is_large=True)
    yield Hostile("nsys SQLite", "3,000 doubling names", _names(3_000, lambda i: f"{doubling_name(12)}{i}"), True)
    yield Hostile("nsys SQLite", "100,000 names of ranges", _ranges(100_000, lambda i: f"request {i}"), is_large=True)
    yield Hostile("nsys SQLite", "90,000 cases", _ranges(90_000, lambda i: f"profpipe:i={i}"), is_large=True)
    yield Hostile("nsys SQLite", "110,000 cases", _ranges(110_000, lambda i: f"profpipe:i={i}"), is_large=True)


# --- zips, Parquet and reports ---------------------------------------------------------------------------------------


@writer
def _zip(folder, head, filling, megabytes, name):
    path = folder / name
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(head)
        piece = filling * ((1 << 20) // len(filling))
        for _ in range(megabytes):
            file.write(piece)
    return path


def _zips():
    json_head, csv_head = b'{"schemaVersion": 1, "traceEvents": [', b"==PROF== Connected\n"
    event = b'{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1,"cat":"kernel"},'
    fillings = {"blanks": b" ", "empty objects": b"{},", "opening brackets": b"[", "events": event}
    for name, filling in fillings.items():
        for megabytes in (60, 600):
            write = _zip(json_head, filling, megabytes, "trace.json.gz")
            yield Hostile("torch trace, gzip", f"{megabytes} MB of {name}", write, is_large=True)
    for name, filling in {"line ends": b"\n", "letters": b"x", "quotes": b'"'}.items():
        write = _zip(csv_head, filling, 600, "raw.csv.gz")
        yield Hostile("ncu raw, CSV", f"a zip of 600 MB of {name}", write, is_large=True)

    def nested(folder):
        path = folder / "trace.json.gz"
        path.write_bytes(functools.reduce(lambda data, _: gzip.compress(data), range(5), b'{"traceEvents": []}'))
        return path

    yield Hostile("torch trace, gzip", "a zip of zips", nested)


def _parquet():
    import pyarrow as pa
    import pyarrow.parquet as pq

    @writer
    def replaced(folder, table, make):
        path = seed_files.write(folder, "nsys Parquet")
        pq.write_table(make(), path / f"{table}.parquet", compression="zstd")
        return path

    def equal_rows():
        count = 10_000_000
        columns = [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
        ]
        return pa.table({name: pa.array([1], pa.int64()).take(pa.nulls(count, pa.int64()).fill_null(0))
                         for name in columns})  # fmt: skip

    def long_texts():
        texts = pa.DictionaryArray.from_arrays(pa.nulls(3_000, pa.int32()).fill_null(0), pa.array(["x" * 1_000_000]))
        return pa.table({"id": pa.array(range(3_000)), "value": texts})

    def columns_of_text():
        return pa.table({"id": pa.array(["a"]), "value": pa.array([[1, 2]])})

    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    yield Hostile("nsys Parquet", "10 million equal rows", replaced(kernels, equal_rows), is_large=True)
    yield Hostile("nsys Parquet", "3,000 texts of a megabyte", replaced("StringIds", long_texts), is_large=True)
    yield Hostile("nsys Parquet", "lists in place of texts", replaced("StringIds", columns_of_text))


def _reports():
    @writer
    def written(folder, change):
        path = folder / "report.ncu-rep"
        path.write_bytes(change(REPORT.read_bytes()))
        return path

    def bytes_set(seed):
        def change(data):
            dice, changed = random.Random(seed), bytearray(data)
            for _ in range(20):
                changed[dice.randrange(len(changed))] = dice.randrange(256)
            return bytes(changed)

        return change

    changes: dict[str, Callable[[bytes], bytes]] = {
        "half": _half,
        "twice": lambda data: data * 2,
        "head only": lambda data: data[:16],
        "a length of 4 GB": lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:],
        "a length of 0": lambda data: data[:4] + b"\0\0\0\0" + data[8:],
        "NUL behind it": lambda data: data + b"\0" * 4096,
        **{f"20 bytes set, {seed}": bytes_set(seed) for seed in range(8)},
    }
    for name, change in changes.items():
        yield Hostile("ncu report", name, written(change))
    yield Hostile("ncu report", "20 MB of 0xff behind it", written(lambda data: data + b"\xff" * LARGE), is_large=True)
    yield Hostile("ncu report", "200 times", written(lambda data: data * 200), is_large=True)


# --- files of profpipe -----------------------------------------------------------------------------------------------

_HEAD = "version: 1\nname: x\nworkloads:\n  w:\n    command: [echo, '{a}']\n"


def _pipelines():
    bombs = {
        "aliases of aliases": "a0: &a0 [x, x]\n"
        + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 30)),
        "an alias in itself": "a: &a [*a]\n",
        "100,000 values": _HEAD + f"    matrix: {{a: [{', '.join(map(str, range(100_000)))}]}}\n",
        "10^12 points": _HEAD + "    matrix: {" + ", ".join(f"a{i}: [1,2,3,4,5,6,7,8,9,0]" for i in range(12)) + "}\n",
        "99,990 points": _HEAD
        + f"    matrix: {{a: [{', '.join(map(str, range(9_999)))}], b: [1,2,3,4,5,6,7,8,9,0]}}\n",
        "3,000 unknown keys": _HEAD + "".join(f"    key{i}: 1\n" for i in range(3_000)),
        "100,000 unknown keys": _HEAD + "".join(f"    k{i}: 1\n" for i in range(40_000)),
        "a long key": _HEAD + "    " + "k" * 400_000 + ": 1\n",
        "brackets": "a: " + "[" * 50_000,
        "nested mappings": "".join(" " * i + "a:\n" for i in range(900)),
        "a Python object": "a: !!python/object/apply:os.system ['touch /tmp/profpipe-evil']\n",
        "a date": "version: 2024-13-45\n",
        "binary": "a: !!binary x\n",
        "merges": "a: &a {x: 1}\nb:\n  <<: [*a, *a, 3]\n",
        "a set": "? a\n? b\n",
        "two documents": "a: 1\n---\nb: 2\n",
        "a tab": "a:\n\tb: 1\n",
        "a directive": "%YAML 9.9\n---\na: 1\n",
        "a placeholder in itself": _HEAD + "    env: {A: '${A:-${A:-x}}'}\n",
        "blanks": " " * 500_000,
        "one mapping of NULs": "\0: \0\n",
        "an anchor of emptiness": "&a : *a\n",
        "10,000 workloads": "version: 1\nname: x\nworkloads:\n" + "".join(
            f"  w{i}: {{command: [echo]}}\n" for i in range(9_000)),
        "a template in a command": "version: 1\nname: x\nworkloads:\n"
        "  w: {command: ['{a.__class__}', '{0}', '{', '}}']}\n",
        "10^9 repeats": _HEAD + "    repeats: 1000000000\n    matrix: {a: [1]}\n",
        "infinite timeouts": _HEAD + "    timeout_s: .inf\n    matrix: {a: [.nan, -.inf, 1e999]}\n",
    }  # fmt: skip
    for name, text in bombs.items():
        yield Hostile("pipeline file", name, _text_writer(text))


def _event_files():
    started = '{"event": "started"}\n'
    texts: dict[str, Callable[[], str]] = {
        "300,000 lines that are no events": lambda: started + "x\n" * 300_000,
        "300,000 lists": lambda: started + "[1]\n" * 300_000,
        "300,000 cut lines before started": lambda: started + '{"a": {"event":"started"}\n' * 300_000,
        "20 MB of blank lines": lambda: started + "\n" * 20_000_000,
        "300,000 cases": lambda: (
            started + "".join(f'{{"event": "case_started", "case": "n={i}"}}\n' for i in range(300_000))
        ),
        "a million samples": lambda: (
            started
            + '{"event": "case_started", "case": "a"}\n'
            + json.dumps({"event": "samples", "case": "a", "unit": "ns", "metric": "time", "values": [1.0] * 1_000_000})
            + "\n"
        ),
        "100,000 metrics": lambda: (
            started
            + "".join(
                f'{{"event": "metric", "case": "a", "metric": "m{i}", "value": 1, "unit": "1"}}\n'
                for i in range(100_000)
            )
        ),
        "100,000 processes": lambda: (started + '{"event": "case_started", "case": "a"}\n') * 100_000,
        "a value 100,000 lists deep": lambda: started + "[" * 100_000 + "]" * 100_000 + "\n",
    }
    for name, make in texts.items():
        for format in ("job.jsonl", "hook"):
            yield Hostile(format, name, _lines(format, make), is_large=True)


@writer
def _lines(folder, format, make):
    path = folder / seed_files.file_name(format)
    path.write_text(make().replace('"event"', '"hook"') if format == "hook" else make())
    return path


@writer
def _gigabyte(folder, format, filling):
    before, _, behind = _unit(format)
    path = folder / seed_files.file_name(format)
    piece = filling * (10_000_000 // len(filling))
    _write_pieces(path, itertools.chain([before], itertools.repeat(piece, 100), [behind]))
    return path


def worst():
    """Yield what took longest before there were bounds: a description, what it took, and the file."""
    made = {file.label: file for file in corpus()}

    def named(name):
        return _names(1, lambda _: name)

    digits = "x<" + "1" * 50_000 + ">(int)"
    million = _HEAD + "    matrix: {a: [" + "1, " * 1_000_000 + "1]}\n"
    keys = _HEAD + "".join(f"    key{i}: 1\n" for i in range(100_000))
    cases: list[tuple[str, str, str, Callable[[Path], Path]]] = [
        ("a mangled name whose substitutions double", "over 60 s, 7.6 GB", "nsys SQLite", named(doubling_name(30))),
        ("recursive views with the names of tables", "90 s, 6 GB", "nsys SQLite",
         made["nsys SQLite: an endless view"].write),
        ("20,000 pushes without pops", "86 s, 3.1 GB", "nsys SQLite", _pushes(20_000)),
        ("a gigabyte of line ends in a CSV of ncu", "8.6 GB", "ncu raw, CSV", _gigabyte("ncu raw, CSV", "\n")),
        ("a gigabyte of `{},` in a trace", "90 s", "torch trace", _gigabyte("torch trace", "{},")),
        ("a name of 50,000 characters", "31 s", "nsys SQLite", named(digits)),
        ("600,000 names of kernels", "57 s", "nsys SQLite", _names(600_000, lambda i: f"kern_{i}")),
        ("a pipeline file with aliases of aliases", "over 40 s", "pipeline file",
         made["pipeline file: aliases of aliases"].write),
        ("a pipeline file with a million values", "over 40 s", "pipeline file", _text_writer(million)),
        ("a pipeline file with 10^12 points", "over 40 s", "pipeline file", made["pipeline file: 10^12 points"].write),
        ("a pipeline file with 100,000 unknown keys", "over 40 s", "pipeline file", _text_writer(keys)),
    ]  # fmt: skip
    for name, before, format, write in cases:
        yield name, before, Hostile(format, name, write, is_large=True)


@writer
def _text_writer(folder, text):
    path = folder / "pipeline.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def corpus(*, has_all=False):
    """Yield every file, ``has_all`` with each filling in each format of text. Those of results folders are apart."""
    for number, format in enumerate(seed_files.FORMATS):
        for name, text in NAMES.items():
            yield Hostile(format, f"names: {name}", _with(format, Texts(kernel=text, range=text)))
            if name in ("controls", "markup", "doubling"):
                yield Hostile(format, f"cases: {name}", _with(format, Texts(range=f"profpipe:{text}")))
        for name, text in NUMBERS.items():
            yield Hostile(format, f"a number: {name}", _with(format, Texts(number=text)))
        for name, damage in DAMAGES.items():
            yield Hostile(format, name, _damaged(format, damage))
        if format in seed_files.TEXTS and format != "pipeline file":
            yield from _large_texts(format, number, has_all=has_all)
    yield from _databases()
    yield from _zips()
    yield from _parquet()
    yield from _reports()
    yield from _pipelines()
    yield from _event_files()
