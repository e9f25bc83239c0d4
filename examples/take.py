"""Copy a run into the examples: its record, its tables as Parquet, and its pages, without the profilers' files.

    python examples/take.py out/latest NAME [--below FOLDER]

``NAME/pipeline.yaml`` must exist. It stays, as do programs beside it. It is the pipeline with the values of this run as
its defaults, so that ``profpipe run`` in that folder is the same study. The script cuts the folders of the machine from
the commands in ``run.json`` and from the paths in reasons. It copies nothing if a folder of the machine is left in any
text.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from pyarrow import parquet

from profpipe.results import schema, store
from profpipe.results.manifest import Manifest
from profpipe.results.schema import Tables

HERE = Path(__file__).resolve().parent
#: Raw files, files that are written below in another form, and pages that are rendered again.
IGNORED = ("raw", ".*", "*.parquet", "*.csv", "*.md", "*.html", "plots", "run.json", "pipeline.yaml",
           "results.json")  # fmt: skip
#: A path below a folder of the user's machine, from where its word begins. In JSON a line may begin with ``\\n``.
FOLDER = re.compile(
    r"""(?:^ | (?<=[\s"'`(,;]) | (?<=\\[nt]))
    (?:[^\s"'`(,;/]* [=:<\[{|])? /(?!dev/|proc/|sys/) [^/\s"'`]+ / [^\s"'`)]*""",
    re.MULTILINE | re.VERBOSE,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("name", help="name of the example")
    parser.add_argument("--below", type=Path, default=HERE, help="folder that holds the examples")
    args = parser.parse_args()
    run, target = args.run.resolve(), args.below / args.name
    if not (target / "pipeline.yaml").is_file():
        sys.exit(f"{target / 'pipeline.yaml'} is missing: put the study there, with this run's values as its defaults.")
    data, manifest = store.load(run)
    data.cases["reason"] = [relative_to_run(reason, run) for reason in data.cases["reason"]]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / args.name
        shutil.copytree(run, copy, ignore=shutil.ignore_patterns(*IGNORED))
        store.save(copy, data, without_folders(manifest, run))
        (copy / "cases.csv").unlink()
        refuse_folders(run, copy, data)
        for table in schema.ALL:
            # Such a table may be absent, and then has no rows.
            if table.is_new and not len(getattr(data, table.name)):
                (copy / f"{table.name}.parquet").unlink(missing_ok=True)
        for path in copy.glob("*.parquet"):
            compact(path)
        clear(target)
        shutil.copytree(copy, target, dirs_exist_ok=True)
    # The page says why the code is not 0: a case failed (1), or the gate of an `ab` run failed or is undecided (4, 5).
    if subprocess.run([sys.executable, "-m", "profpipe", "report", str(target)]).returncode not in (0, 1, 4, 5):
        sys.exit(f"{target}: the report could not be written.")


def compact(path: Path) -> None:
    """Write a small table again without what helps to search in a large one. This saves a quarter of its bytes."""
    table = parquet.read_table(path)
    parquet.write_table(
        table, path, compression="brotli", compression_level=11, use_dictionary=False, write_statistics=False
    )


def clear(target: Path) -> None:
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "pipeline.yaml" and path.suffix != ".py":
            path.unlink()


def without_folders(manifest: Manifest, run: Path) -> Manifest:
    """Return the manifest with commands as typed beside the pipeline, and with programs and logs by their names."""
    results = re.compile(rf"[^\s=]*/(?={re.escape(f'{run.parent.name}/{run.name}')}/)")
    jobs = []
    for job in manifest.jobs:
        argv = tuple(tuple(_base_name(results.sub("", word)) for word in command) for command in job.argv)
        jobs.append(replace(job, argv=argv, reason=relative_to_run(job.reason, run)))
    return replace(manifest, command=tuple(map(_base_name, manifest.command)), jobs=tuple(jobs))


def relative_to_run(text: str, run: Path) -> str:
    """Return ``text`` with each path below the run's folder relative to that folder."""
    return re.sub(rf"[^\s=(:,;\"']*\b{re.escape(run.name)}/", "", text)


def refuse_folders(run: Path, copy: Path, data: Tables) -> None:
    """Exit if a text file of the copy or a table holds a folder of the machine."""
    texts = {}
    for path in sorted(path for path in copy.rglob("*") if path.is_file()):
        try:
            texts[str(path.relative_to(copy))] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not a text
    texts.update(
        {f"{name}.parquet": getattr(data, name).to_csv(index=False) for name in (table.name for table in schema.ALL)}
    )
    for name, text in texts.items():
        if found := FOLDER.search(text):
            sys.exit(f"{run}: {name} names a folder of this machine: {found[0]}")


def _base_name(word: str) -> str:
    return Path(word).name if word.startswith("/") else word


if __name__ == "__main__":
    main()
