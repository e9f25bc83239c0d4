"""Damaged and hostile inputs of every kind are read or refused, and never end in a traceback.

The suites share a few seconds in CI. `make fuzz` runs an hour of them and prints their tables.
"""

import contextlib
import gzip
import io
import json
import shutil
from pathlib import Path

import hostile_folders
import pytest
import seed_files
from fuzzing import Fuzz, mutated
from hostile_files import NAMES, NUMBERS
from markdown_it import MarkdownIt
from test_html import Elements, document, render
from test_text_from_outside import is_clean

from profpipe import cli
from profpipe.errors import UnreadableFile
from profpipe.ingest import reader
from profpipe.report.markdown import Markdown
from profpipe.report.text import write_section

DATA = Path(__file__).parent / "data"
ROOT = Path(__file__).resolve().parents[1]
#: A larger file takes longer to read than to damage in an interesting way.
LARGEST = 2_000_000
#: Bytes that mean something in JSON, CSV, YAML and SQLite.
BYTES = b"\x00\xff\n\r\t \"',;:{}[]()<>\\-0179eE_.\x80&*!|#%$\x1b"
WORDS = [*(text for text in NAMES.values() if len(text) < 2_000), *NUMBERS.values()]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One small file of each format, and the recorded files of the tests, each with its format."""
    folder = tmp_path_factory.mktemp("seeds")
    formats = [name for name in seed_files.FORMATS if name not in ("pipeline file", "nsys Parquet")]
    made = [(name, seed_files.write(folder, name, seed_files.Texts(rows=2))) for name in formats]
    files = sorted(path for path in DATA.rglob("*") if path.is_file() and 0 < path.stat().st_size < LARGEST)
    return made + [(path.relative_to(DATA).parts[0], path) for path in files]


def test_damaged_files_of_profilers_are_read_or_refused(tmp_path, recorded):
    known, fuzz = reader.parsers(), Fuzz(share=0.4)
    for number in fuzz.rounds(at_least=len(recorded)):
        format, original = recorded[number % len(recorded)]
        path = tmp_path / original.name
        if original.suffix == ".json" and format in seed_files.FORMATS and fuzz.dice.random() < 0.5:
            path.write_text(json.dumps(altered(json.loads(original.read_bytes()), fuzz)))
        else:
            path.write_bytes(damaged(original.read_bytes(), fuzz))
        try:
            with fuzz.measured(format):
                reader.parse(reader.choose(path, known), path)
        except UnreadableFile as refused:
            # The rows of a file that is read add up to its sums, or it cannot be trusted.
            if "cannot be trusted" in refused.what or not str(refused).isprintable():
                fuzz.find(f"{format}: {refused.what}", path)
        except Exception as error:
            fuzz.find(f"{format}: {error!r}", path)
        path.unlink()
    fuzz.end()


def damaged(data, fuzz):
    if not data:
        return data
    is_zip = data.startswith(b"\x1f\x8b")
    if is_zip and fuzz.dice.random() < 0.9:
        return gzip.compress(damaged(gzip.decompress(data), fuzz), 1)
    if not is_zip and fuzz.dice.random() < 0.3:
        begin, word = fuzz.dice.randrange(len(data)), fuzz.dice.choice(WORDS).encode("utf-8", "surrogatepass")
        return data[:begin] + word + data[begin + fuzz.dice.choice([0, 1, 3, 10]) :]
    return mutated(data, fuzz.dice, BYTES, ends=0.5)


# --- commands on files of profpipe -----------------------------------------------------------------------------------


def check(fuzz, format, words, file):
    """Run a command in this process. It must end with a code of the documentation, and print text."""
    printed = io.StringIO()
    code: object = None
    try:
        with fuzz.measured(format), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = cli.main(words)
    except SystemExit as end:
        code = end.code
    except Exception as error:
        fuzz.find(f"{format}: {words[0]}: {error!r}", file)
    text = printed.getvalue()
    if "internal error" in text or "Traceback" in text:
        fuzz.find(f"{format}: {words[0]}: {text[-300:]}", file)
    elif code not in (0, 1, 2, 3) or not is_clean(text.replace("\t", " ")):
        fuzz.find(f"{format}: {words[0]}: exit code {code}, printed {text[:300]!r}", file)


def leaves(node, path=()):
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from leaves(child, (*path, key))


def altered(document, fuzz):
    """Return a copy of a JSON document with some values, or names of keys, exchanged."""
    document = json.loads(json.dumps(document))
    for _ in range(fuzz.dice.choice([1, 1, 3])):
        *parents, last = fuzz.dice.choice(list(leaves(document)) or [()])
        node = document
        for key in parents:
            node = node[key]
        choices = (None, [], {}, True, -1, 10**30, 1e308, [[]], {"a": 1}, *WORDS)
        if isinstance(node, dict) and fuzz.dice.random() < 0.2:
            node[fuzz.dice.choice(WORDS)] = node.pop(last)
        else:
            node[last] = fuzz.dice.choice(choices)
    return document


def test_damaged_pipeline_files_are_read_or_refused(tmp_path):
    import yaml

    fuzz = Fuzz(share=0.15)
    files = [ROOT / "pipeline.yaml", *sorted((ROOT / "pipelines").glob("*.yaml"))]
    path = tmp_path / "pipeline.yaml"
    for number in fuzz.rounds(at_least=len(files)):
        text = files[number % len(files)].read_bytes()
        if fuzz.dice.random() < 0.5:
            path.write_bytes(damaged(text, fuzz))
        else:
            path.write_text(json.dumps(altered(yaml.safe_load(text), fuzz)))
        command = fuzz.dice.choice([["list"], ["run", "--dry-run"]])
        check(fuzz, "pipeline file", [*command, str(path)], path)
    fuzz.end()


def test_damaged_results_folders_are_read_or_refused(tmp_path, tmp_path_factory):
    fuzz = Fuzz(share=0.25)
    made = tmp_path_factory.mktemp("made")
    with contextlib.redirect_stdout(io.StringIO()):
        tables, out = hostile_folders.make_tables(made), hostile_folders.make_run(made)
        of_pairs = hostile_folders.make_pairs(made)
    run, pairs = (
        next(path for path in each.iterdir() if path.is_dir() and path.name != "latest" and not path.is_symlink())
        for each in (out, of_pairs)
    )
    events = "raw/sums/plain/job.jsonl"
    kinds: list[tuple[str, Path, str, list[str]]] = [
        ("run.json", tables, "run.json", ["report"]),
        ("run.json", run, "run.json", ["compare"]),
        ("request.json", run, "raw/request.json", ["resume"]),
        ("fingerprint.json", run, "raw/fingerprint.json", ["resume"]),
        ("job.jsonl", run, events, ["ingest"]),
        ("job.jsonl", run, events, ["report"]),
        ("tables, Parquet", tables, "kernels.parquet", ["compare"]),
        ("tables, Parquet", run, "metrics.parquet", ["report"]),
        ("tables, Parquet", tables, "kernels.parquet", ["report"]),
        ("run.json of pairs", pairs, "run.json", ["report"]),
        ("run.json of pairs", pairs, "run.json", ["resume"]),
        ("sides.json", pairs, "raw/sides.json", ["resume"]),
        ("verdicts", pairs, "verdicts.parquet", ["report"]),
        ("history", out, "profpipe.db", ["history"]),
    ]
    for number in fuzz.rounds(at_least=len(kinds)):
        format, source, name, command = kinds[number % len(kinds)]
        folder = tmp_path / "folder"
        shutil.copytree(source, folder, symlinks=True)
        file = folder / name
        if name.endswith(".json") and fuzz.dice.random() < 0.7:
            file.write_text(json.dumps(altered(json.loads(file.read_text()), fuzz)))
        else:
            file.write_bytes(damaged(file.read_bytes(), fuzz))
        where = {"ingest": [str(file)], "compare": [str(folder), str(source)], "history": ["--out", str(folder)]}
        check(fuzz, format, [*command, *where.get(command[0], [str(folder)])], file)
        shutil.rmtree(folder)
    fuzz.end()


# --- names on pages --------------------------------------------------------------------------------------------------


def structure(markdown):
    """Return the kinds of elements that GitHub makes of a page."""
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(markdown)
    inline = (child for token in tokens for child in token.children or ())
    return {token.type for token in (*tokens, *inline)} - {"text", "softbreak"}


def as_markdown(name):
    # Charts are links to pictures, whose names come from the identifiers of sections and not from names.
    return "\n\n".join(Markdown().section(section) for section in document(name).sections)


def test_names_on_pages_stay_text():
    fuzz = Fuzz(share=0.2)
    plain, known = set(Elements(render("name")).names), structure(as_markdown("name"))
    for _ in fuzz.rounds(at_least=5):
        words = fuzz.dice.choices(WORDS, k=fuzz.dice.choice([1, 2, 3]))
        letters = "".join(fuzz.dice.choices("ab <>&\"'`*_[]()|\\#~!:/.-+=$%^{}\n\r\t\0\x1b\x9d\u202e\ud800é1", k=12))
        name = fuzz.dice.choice([letters, "".join(words), letters + words[0]])
        try:
            with fuzz.measured("names in HTML"):
                html = render(name)
            if not set(Elements(html).names) <= plain or not is_clean(html.replace("\t", " ")):
                fuzz.find(f"HTML: {name!r}")
            with fuzz.measured("names in text"):
                text = "\n".join(write_section(section, name) for section in document(name).sections)
            if not is_clean(text.replace("\t", " ")):
                fuzz.find(f"text: {name!r}")
            with fuzz.measured("names in Markdown"):
                markdown = as_markdown(name)
            if not is_clean(markdown.replace("\t", " ")) or not structure(markdown) <= known:
                fuzz.find(f"Markdown: {name!r} makes {structure(markdown) - known}")
        except Exception as error:
            fuzz.find(f"{name!r}: {error!r}")
    fuzz.end()
