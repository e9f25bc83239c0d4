"""The parts of the documentation that are made from other files equal them. `pytest --regenerate` renews the parts."""

import ast
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel
from test_imports import EVERYBODY, MAY_IMPORT

from profpipe.config.models import Pipeline
from profpipe.results import schema

ROOT = Path(__file__).resolve().parents[1]
#: How several mappings below one key are written.
_SEVERAL = {"workloads": ".NAME", "kernel_classes": "[]", "tables": "[]", "plots": "[]"}

EXAMPLES = ROOT / "examples"


def first_screen():
    """Return twelve lines of the report of a training loop: its answer, and where a step goes."""
    text = (EXAMPLES / "own_program" / "SUMMARY.md").read_text(encoding="utf-8")
    parts = _table(text, "## Where a step goes: gpt").splitlines()
    return "\n".join([_answer(text), "", *parts[:10]])


def example_results():
    """Return a table of the examples: what ran, and the answer that SUMMARY.md gives."""
    rows = ["| example | run | answer |", "| --- | --- | --- |"]
    for summary in sorted(EXAMPLES.glob("*/SUMMARY.md")):
        text, name = summary.read_text(encoding="utf-8"), summary.parent.name
        run = " · ".join(re.sub(r" \d\d:\d\d UTC$", "", text.splitlines()[0]).split(" · ")[-3:])
        answer = "<br>".join(line.removeprefix("- ") for line in text.split("\n\n")[1].splitlines())
        rows.append(f"| [{name}]({name}/SUMMARY.md) | {run} | {answer.replace('**', '')} |")
    return "\n".join(rows)


def _answer(text):
    """Return the first bold sentence, which is the answer to the question of the first workload."""
    return re.search(r"\*\*.*\.\*\*$", text, re.MULTILINE)[0]


def _table(text, heading):
    """Return the first table below ``heading``."""
    lines = text[text.index(f"\n{heading}\n") :].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    return "\n".join(itertools.takewhile(lambda line: line.startswith("|"), lines[start:]))


def pipeline_keys():
    """Return a table of the keys of a pipeline file. The keys of a mapping follow the key that holds it."""
    return "\n".join(["| key | default | meaning |", "| --- | --- | --- |", *_keys("", Pipeline, set())])


def _keys(path, model, shown):
    """Yield a row for each key whose declaration is not among ``shown``."""
    for name, field in model.model_fields.items():
        declared = next(base for base in reversed(model.__mro__) if name in getattr(base, "model_fields", ()))
        if (declared, name) in shown:
            continue
        shown.add((declared, name))
        place = f"{path}.{field.alias or name}".removeprefix(".") + _SEVERAL.get(name, "")
        meaning = (field.description or _first_line(field)).replace("|", "\\|")
        yield f"| `{place}` | {_default(field)} | {meaning} |"
        for inner in _models(field.annotation):
            yield from _keys(place, inner, shown)


def _models(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _first_line(field):
    """Return the first line that documents the mapping behind a key."""
    inner = next(_models(field.annotation), None)
    return (inner.__doc__ or "").splitlines()[0].rstrip(".") if inner else ""


def _default(field):
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel) or value in (None, "", {}, (), []):
        return ""
    return f"`{json.dumps(value)}`".replace('"', "")


def packages():
    """Return a table of the packages: their purpose, from their docstrings, and what else they may import."""
    rows = ["| package | content | may also import |", "| --- | --- | --- |"]
    for name, others in MAY_IMPORT.items():
        source = ROOT / "profpipe" / name / "__init__.py"
        if source.is_file():
            content = (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").splitlines()[0]
            imports = ", ".join(f"`{other}`" for other in MAY_IMPORT if other in others)
            rows.append(f"| `{name}` | {content.replace('``', '`')} | {imports or 'nothing'} |")
    everybody = ", ".join(f"`{name}`" for name in sorted(EVERYBODY))
    return "\n".join([*rows, "", f"Every module may import {everybody} and other modules of the same package."])


def documentation():
    """Return the tables of the schema as Markdown: first the columns that several tables have."""
    tables = Counter((column.name, column.meaning) for table in schema.ALL for column in table.columns)
    rows = {
        f"| `{column.name}` | {column.dtype} | {column.meaning} | {_holders(column)} |": None
        for table in schema.ALL
        for column in table.columns
        if tables[column.name, column.meaning] > 1
    }
    blocks = ["\n".join(["| column | type | meaning | in |", "| --- | --- | --- | --- |", *rows])]
    for table in schema.ALL:
        head = f"| `{table.name}`: {table.row} | type | meaning |\n| --- | --- | --- |"
        own = (column for column in table.columns if tables[column.name, column.meaning] == 1)
        blocks.append("\n".join([head, *(f"| `{c.name}` | {c.dtype} | {c.meaning} |" for c in own)]))
    return "\n\n".join(blocks)


def _holders(column):
    names = [table.name for table in schema.ALL if column in table.columns]
    return "all" if len(names) == len(schema.ALL) else ", ".join(names)


PARTS = {
    "packages": ("CONTRIBUTING.md", packages),
    "first screen": ("README.md", first_screen),
    "results": ("examples/README.md", example_results),
    "tables": ("docs/tables.md", documentation),
    "keys": ("docs/pipeline-file.md", pipeline_keys),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_part_of_the_page_equals_its_source(name, regenerate):
    page, make = PARTS[name]
    text = (ROOT / page).read_text(encoding="utf-8")
    before, rest = text.split(f"<!-- {name} -->\n")
    shown, after = rest.split(f"<!-- /{name} -->")
    if regenerate:
        whole = f"{before}<!-- {name} -->\n{make()}\n<!-- /{name} -->{after}"
        (ROOT / page).write_text(whole, encoding="utf-8")
    else:
        assert shown.rstrip("\n") == make(), f"renew it: pytest --regenerate {Path(__file__).name}"
