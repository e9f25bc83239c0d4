"""Takes a run into the examples: its record, tables and page, without what the profilers wrote.

    python examples/take.py out/latest NAME [--below FOLDER]

``NAME/pipeline.yaml`` stays, and must be there: it is the pipeline with the values of this run as its defaults, so that
``profpipe run`` in that folder is the same study. The folders of the machine are cut from the commands in ``run.json``,
and from the paths of logs that reasons name; where one is left in any text that would be taken, nothing is.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Large, or said in another file.
LEFT_BEHIND = ("raw", ".*", "*.parquet", "SUMMARY.md", "plots", "run.json", "pipeline.yaml")
#: A path below a folder of somebody's machine, from where its word begins; in JSON a line may begin with ``\\n``.
FOLDER = re.compile(
    r"""(?:^ | (?<=[\s"'`(,;]) | (?<=\\[nt]))
    (?:[^\s"'`(,;/]* [=:<\[{|])? /(?!dev/|proc/|sys/) [^/\s"'`]+ / [^\s"'`)]*""",
    re.MULTILINE | re.VERBOSE,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("name", help="of the example")
    parser.add_argument("--below", type=Path, default=HERE, help="the folder that holds the examples")
    args = parser.parse_args()
    run, target = args.run.resolve(), args.below / args.name
    if not (target / "pipeline.yaml").is_file():
        sys.exit(f"{target / 'pipeline.yaml'} is missing: put the study there, with this run's values as its defaults.")
    with tempfile.TemporaryDirectory() as folder:
        taken = Path(folder) / args.name
        shutil.copytree(run, taken, ignore=shutil.ignore_patterns(*LEFT_BEHIND))
        write_without_folders(run, taken)
        refuse_folders(run, taken)
        clear(target)
        shutil.copytree(taken, target, dirs_exist_ok=True)
    # 1: some case of the run failed, which its page says.
    if subprocess.run([sys.executable, "-m", "profpipe", "report", str(target)]).returncode not in (0, 1):
        sys.exit(f"{target}: the report could not be written.")


def clear(target: Path) -> None:
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "pipeline.yaml":
            path.unlink()


def write_without_folders(run: Path, taken: Path) -> None:
    """Writes the record of ``run``, and the table with its reasons, which is else the same to the byte."""
    record = without_folders(json.loads((run / "run.json").read_text(encoding="utf-8")), run)
    (taken / "run.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    cases = (run / "cases.csv").read_bytes().decode("utf-8")
    (taken / "cases.csv").write_bytes(below_run(cases, run).encode("utf-8"))


def without_folders(record: dict[str, Any], run: Path) -> dict[str, Any]:
    """``record`` with commands as they are typed beside the pipeline, programs by their names, and logs by theirs."""
    own = re.compile(rf"[^\s=]*/(?={re.escape(f'{run.parent.name}/{run.name}')}/)")
    record["command"] = [_named(word) for word in record["command"]]
    for job in record["jobs"]:
        job["argv"] = [[_named(own.sub("", word)) for word in argv] for argv in job["argv"]]
        job["reason"] = below_run(job.get("reason", ""), run)
    return record


def below_run(text: str, run: Path) -> str:
    """``text`` with paths below the run's folder, wherever that was, relative to it."""
    return re.sub(rf"[^\s=(:,;\"']*\b{re.escape(run.name)}/", "", text)


def refuse_folders(run: Path, taken: Path) -> None:
    for path in sorted(path for path in taken.rglob("*") if path.is_file()):
        try:
            found = FOLDER.search(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            continue  # no text
        if found:
            sys.exit(f"{run}: {path.relative_to(taken)} names a folder of this machine: {found[0]}")


def _named(word: str) -> str:
    """A program, or a file, by its name alone."""
    return Path(word).name if word.startswith("/") else word


if __name__ == "__main__":
    main()
