"""Takes a run into the examples: its record, tables and page, without what the profilers wrote.

    python examples/take.py out/latest NAME [--below FOLDER]

``NAME/pipeline.yaml`` stays, and must be there: it is the pipeline with the values of this run as its defaults, so that
``profpipe run`` in that folder is the same study. The folders of the machine are cut from the commands in ``run.json``;
where one is left, nothing is taken.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
#: Large, or said in another file.
LEFT_BEHIND = ("raw", ".*", "*.parquet", "SUMMARY.md", "plots", "run.json", "pipeline.yaml")
#: A folder of somebody's machine in a word of a command.
FOLDER = re.compile(r"(?:^|[=:])/(?!dev/|proc/)[^/\s]+/")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("name", help="of the example")
    parser.add_argument("--below", type=Path, default=HERE, help="the folder that holds the examples")
    args = parser.parse_args()
    run, target = args.run.resolve(), args.below / args.name
    if not (target / "pipeline.yaml").is_file():
        sys.exit(f"{target / 'pipeline.yaml'} is missing: put the study there, with this run's values as its defaults.")
    record = without_folders(json.loads((run / "run.json").read_text(encoding="utf-8")), run)
    clear(target)
    shutil.copytree(run, target, ignore=shutil.ignore_patterns(*LEFT_BEHIND), dirs_exist_ok=True)
    (target / "run.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    # 1: some case of the run failed, which its page says.
    if subprocess.run([sys.executable, "-m", "profpipe", "report", str(target)]).returncode not in (0, 1):
        sys.exit(f"{target}: the report could not be written.")


def clear(target: Path) -> None:
    for path in target.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "pipeline.yaml":
            path.unlink()


def without_folders(record: dict[str, Any], run: Path) -> dict[str, Any]:
    """``record`` with commands as they are typed beside the pipeline, and programs by their names."""
    own = re.compile(rf"[^\s=]*/(?={re.escape(f'{run.parent.name}/{run.name}')}/)")
    record["command"] = [_named(word) for word in record["command"]]
    for job in record["jobs"]:
        job["argv"] = [[_named(own.sub("", word)) for word in argv] for argv in job["argv"]]
        if left := [word for argv in job["argv"] for word in argv if FOLDER.search(word)]:
            sys.exit(f"{run}: a command names folders of this machine: {' '.join(left)}")
    return record


def _named(word: str) -> str:
    """A program, or a file, by its name alone."""
    return Path(word).name if word.startswith("/") else word


if __name__ == "__main__":
    main()
