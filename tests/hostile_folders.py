"""The part of the hostile corpus that is a results folder: hostile files in a run, or in a folder of ``ingest``."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing

import seed_files
from hostile_files import DAMAGES, ENDLESS, NAMES, NUMBERS, Hostile
from seed_files import Texts

#: Formats that ``report`` reads.
REPORTED = ("run.json", "tables, Parquet")
_TABLES = ("cases", "kernels", "ranges", "steps", "metrics")

WORKLOAD = "def build(params):\n    return lambda: sum(range(1000 * params['n']))\n"
PIPELINE = """
version: 1
name: small
defaults: {profilers: [plain], warmup: 0, repeats: 3, timing: {order: sequential, budget_s: 0.02}}
workloads:
  sums: {script: sums.py, matrix: {n: [1, 2]}}
"""


def make_tables(folder):
    """Ingest one small export, and return the folder of its tables."""
    from profpipe.commands import ingest

    out = folder / "tables"
    if not out.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        ingest.read_files([seed_files.write(folder, "nsys SQLite", Texts(rows=3))], out)
    return out


def make_run(folder):
    """Run a small pipeline, and return its results folder."""
    return _run_in(folder / "project", "run")


def make_pairs(folder):
    """Run one pair of the same pipeline, and return its results folder."""
    return _run_in(folder / "pairs", "ab", "--aa", "--pairs", "1")


def _run_in(project, command, *words):
    from profpipe import cli

    if not project.is_dir():
        project.mkdir(parents=True)
        (project / "sums.py").write_text(WORKLOAD)
        (project / "pipeline.yaml").write_text(PIPELINE)
        place = [str(project / "pipeline.yaml"), "--quiet", "--out", str(project / "out")]
        assert cli.main([command, *place, *words]) == 0
    return project / "out"


def make_all(folder):
    make_tables(folder)
    make_run(folder)


def corpus(made):
    """Yield results folders with one hostile file each. ``made`` is where the folders they are copied from are made."""
    yield from _manifests(made)
    yield from _tables(made)
    yield from _orders(made)
    yield from _databases(made)


def _copied(source, change):
    """Return what writes a copy of the folder ``source`` and changes it."""

    def write(folder):
        copy = folder / "copy"
        shutil.copytree(source(), copy, symlinks=True)
        change(copy)
        return copy

    return write


def _leaves(node, path=()):
    items = node.items() if isinstance(node, dict) else enumerate(node[:2]) if isinstance(node, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from _leaves(child, (*path, key))


def _change_json(file, value, every):
    """Replace every so manyth value of a JSON document."""
    document = json.loads(file.read_text())
    for path in list(_leaves(document))[::every]:
        node = document
        try:
            for key in path[:-1]:
                node = node[key]
            node[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # the value around it is replaced already
    file.write_text(json.dumps(document))


def _change_bytes(file, change):
    file.write_bytes(change(file.read_bytes()))


def _of_json(format, source, name):
    """Yield alterations of the JSON file ``name`` of a folder."""
    for kind, text in NAMES.items():
        for every in (7, 30):
            change = lambda copy, text=text, every=every: _change_json(copy / name, text, every)  # noqa: E731
            yield Hostile(format, f"every {every}th value: {kind}", _copied(source, change))
    for kind, damage in DAMAGES.items():
        change = lambda copy, damage=damage: _change_bytes(copy / name, damage)  # noqa: E731
        yield Hostile(format, kind, _copied(source, change))
    large: dict[str, Callable[[bytes], bytes]] = {
        "100,000 lists deep": lambda old: b"[" * 100_000,
        "40 MB of blanks": lambda old: old + b" " * 40_000_000,
        "a million empty objects": lambda old: b'{"jobs": [' + b"{}," * 1_000_000 + b"{}]}",
        "a million keys": lambda old: b"{" + b"".join(b'"k%d":1,' % i for i in range(1_000_000)) + b'"jobs":[]}',
        "a number of 400,000 digits": lambda old: b'{"jobs": ' + b"9" * 400_000 + b"}",
    }
    for kind, make in large.items():
        change = lambda copy, make=make: _change_bytes(copy / name, make)  # noqa: E731
        yield Hostile(format, kind, _copied(source, change), is_large=True)


def _manifests(made):
    yield from _of_json("run.json", lambda: make_tables(made), "run.json")


def _orders(made):
    def run():
        return next(path for path in make_run(made).iterdir() if path.is_dir() and path.name != "latest")

    yield from _of_json("request.json", run, "raw/request.json")


def _tables(made):
    def with_cell(copy, text):
        import pandas as pd

        text = text.encode("utf-8", "replace").decode()
        for table in _TABLES:
            frame = pd.read_parquet(copy / f"{table}.parquet")
            texts = [
                c for c in frame.columns if c in ("workload", "case", "phase", "kernel", "range", "metric", "unit")
            ]
            frame.assign(**dict.fromkeys(texts, text)).to_parquet(copy / f"{table}.parquet", index=False)

    def with_number(copy, number):
        import pandas as pd

        frame = pd.read_parquet(copy / "kernels.parquet")
        cells = [number, *frame["total_ns"].astype(str).iloc[1:]]
        frame.assign(total_ns=cells).to_parquet(copy / "kernels.parquet", index=False)

    for kind, text in NAMES.items():
        change = lambda copy, text=text: with_cell(copy, text)  # noqa: E731
        yield Hostile("tables, Parquet", f"cells: {kind}", _copied(lambda: make_tables(made), change))
    for kind, text in NUMBERS.items():
        change = lambda copy, text=text: with_number(copy, text)  # noqa: E731
        yield Hostile("tables, Parquet", f"a number: {kind}", _copied(lambda: make_tables(made), change))
    yield from _parquet(lambda: make_tables(made))


def _parquet(source):
    def with_kernels(change):
        def altered(copy):
            change(copy / "kernels.parquet")

        return _copied(source, altered)

    def equal_rows(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        one = pq.read_table(path).slice(0, 1)
        pq.write_table(one.take(pa.nulls(20_000_000, pa.int64()).fill_null(0)), path, compression="zstd")

    def long_texts(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pq.read_table(path)
        texts = pa.DictionaryArray.from_arrays(pa.nulls(1_000, pa.int32()).fill_null(0), pa.array(["x" * 1_000_000]))
        many = table.slice(0, 1).take(pa.nulls(1_000, pa.int64()).fill_null(0))
        pq.write_table(many.set_column(many.column_names.index("kernel"), "kernel", texts), path)

    def other_types(path):
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"kernel": [[1]], "run": [{"a": 1}]}), path)

    for kind, damage in DAMAGES.items():
        yield Hostile("tables, Parquet", kind, with_kernels(lambda path, damage=damage: _change_bytes(path, damage)))
    yield Hostile("tables, Parquet", "other types", with_kernels(other_types))
    yield Hostile("tables, Parquet", "20 million equal rows", with_kernels(equal_rows), is_large=True)
    yield Hostile("tables, Parquet", "1,000 texts of a megabyte", with_kernels(long_texts), is_large=True)


def _databases(made):
    def changed(*statements):
        def change(copy):
            with closing(sqlite3.connect(copy / "profpipe.db", isolation_level=None)) as database:
                for statement in statements:
                    database.execute(statement)

        return _copied(lambda: make_run(made), change)

    view = f"CREATE VIEW runs AS {ENDLESS.replace('SELECT i', 'SELECT i AS run, i AS started, i AS name', 1)} FROM n"
    view = view.replace("SELECT i AS run, i AS started, i AS name + 1", "SELECT i + 1")
    statements = {
        "an endless view": ["DROP TABLE runs", view],
        "no table of runs": ["DROP TABLE runs"],
        "a trigger": ["CREATE TRIGGER t AFTER INSERT ON runs BEGIN DELETE FROM runs; END"],
        "hostile names": ["UPDATE runs SET name = 'a' || char(27) || '[2J' || char(157, 8238)",
                          "UPDATE cases SET workload = char(27) || '[2J', \"case\" = char(7)"],
        "blobs": ["UPDATE runs SET name = x'00ff', started = x'00ff'", "UPDATE cases SET time_ns = x'00'"],
        "texts": ["UPDATE cases SET time_ns = 'x'", "UPDATE cases SET params = '[1'"],
        "a future version": ["PRAGMA user_version = 99"],
        "another schema format": ["PRAGMA writable_schema = ON",
                                  "UPDATE sqlite_master SET sql = 'CREATE TABLE x' || sql"],
    }  # fmt: skip
    for kind, list_ in statements.items():
        yield Hostile("history", kind, changed(*list_))
    for kind, damage in DAMAGES.items():
        change = lambda copy, damage=damage: _change_bytes(copy / "profpipe.db", damage)  # noqa: E731
        yield Hostile("history", kind, _copied(lambda: make_run(made), change))
