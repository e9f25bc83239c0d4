"""Write what a user gets from the code of a checkout, and compare it with what another checkout gives.

    python benchmarks/net.py write CHECKOUT DIR [--inputs CHECKOUT] [--quick] [--runs] [--jobs 2]
    python benchmarks/net.py compare A B

`write` runs the commands of CHECKOUT in this Python and keeps in DIR what they print and write:

  examples/    `report` of each example: SUMMARY.md, details.md, report.html, results.json and the other text files
  recordings/  `ingest --out` of each file in tests/data and ../shared/data, and of all files of one folder together:
               every table as Parquet, SUMMARY.md and what is printed
  plans/       `run --dry-run` and `list` of pipeline.yaml and each file in pipelines/
  help/        `--help` of each command, and the schema of a pipeline file
  compare/     `compare` of pairs of examples and of recordings, as text and as JSON
  assets/      styles and scripts of report.html, once
  runs/        with --runs: a run of CPU cases, the same run killed and resumed, its history, and `report` of a run's
               folder that the code of the inputs wrote

Examples, recordings and pipelines are those of --inputs (default: this checkout). Give both sides the same. `--quick`
takes a seeded sample of examples and recordings. Paths, and the times of new runs, are replaced.

`compare` prints each difference: tables by `assert_frame_equal` with exact types and values, all other files as a
unified diff. Its last line counts what was compared and what differs; the exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import difflib
import filecmp
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
#: How many examples and recordings `--quick` takes, and by which draw.
QUICK, SEED = 12, 38
#: Lines of a unified diff that are printed, and characters of each.
LINES, WIDTH = 40, 240
#: Pairs that `compare` compares: of examples, and of recordings below ../shared/data.
PAIRS = (
    ("examples/h100-attention", "examples/h200-attention"),
    ("examples/attention_scaling", "examples/attention_scaling_fp16"),
    ("examples/transformer_lm", "examples/transformer_lm_batch_8"),
    ("shared/h200/sdpa_capture_range.sqlite", "shared/h200/sdpa_nsys2023.sqlite"),
    ("shared/reported/compare_before", "shared/reported/compare_after"),
)
#: Suffixes of files beside the recordings.
NO_RECORDINGS = {".md", ".py", ".sh", ".yaml"}
TEXTS = {".md", ".txt", ".html", ".json"}

#: Runs commands in forks of one process, which has imported what they need: the imports take longest.
WORKER = """
import importlib, json, os, runpy, signal, sys
from profpipe import cli
for name in ("pandas", "pyarrow.parquet", "jinja2", "matplotlib.figure", "matplotlib.backends.backend_agg"):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        pass  # A checkout that does not need it.
for line in sys.stdin:
    argv, folder, output = json.loads(line)
    child = os.fork()
    if not child:
        signal.alarm(900)
        os.chdir(folder)
        opened = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(opened, 1)
        os.dup2(opened, 2)
        sys.argv[1:] = argv
        runpy.run_module("profpipe", run_name="__main__", alter_sys=True)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(output, "a") as file:
        file.write(f"exit code {code}\\n")
    print("done", flush=True)
"""

#: Five cases without torch, one of which fails. A case waits while a file `hold` is there.
WORKLOAD = """
import time
from pathlib import Path

def build(params):
    if params["n"] == 13:
        raise RuntimeError("unlucky")
    if params["n"] == 3 and Path("hold").exists():
        Path("held").touch()
        time.sleep(600)
    return lambda: sum(range(10 * params["n"]))

def available(params):
    return "too large" if params["n"] == 99 else None
"""
PIPELINE = """
version: 1
name: sums
defaults: {warmup: 0, repeats: 3, timing: {order: sequential, budget_s: 0.2, most: 3, rounds: 1}}
workloads:
  sums: {script: sums.py, profilers: [plain], matrix: {n: [1, 2, 3, 13, 99]}, baseline: {n: 1}}
  program: {command: [sh, -c, "exit {code}"], profilers: [plain], matrix: {code: [0, 3]}}
"""
#: Columns of the tables of a run that differ between any two runs.
MEASURED = {"run", "process", "seconds", "flags", "ci_low", "ci_high", "n", "wall_ns", "kernel_ns", "busy_ns"}


class Net:
    """Commands of one checkout, which run below a temporary folder, and the folder that keeps their results."""

    def __init__(self, checkout: Path, kept: Path, below: Path, jobs: int) -> None:
        self.checkout, self.kept, self.below, self._jobs = checkout, kept, below, jobs
        state = below / "state"
        state.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PROFPIPE_", "PYTHON"))},
            "PYTHONPATH": str(checkout),
            "PYTHONPYCACHEPREFIX": str(below / "bytecode"),
            "HOME": str(state),
            "XDG_STATE_HOME": str(state),
            "TZ": "UTC",
            "COLUMNS": "100",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self._replaced = [
            (re.escape(str(path)), name)
            for path, name in ((below, "FOLDER"), (checkout, "CHECKOUT"), (Path(sys.prefix), "VENV"))
        ]
        self._tasks: list[tuple[list[str], str, str]] = []
        self._after: list[Callable[[], object]] = []

    def add(self, argv: list[str], folder: Path, name: str, after: Callable[[], object] = lambda: None) -> None:
        """Note a command that runs in ``folder`` and whose output is kept as ``name``; then call ``after``."""
        output = self.below / "outputs" / name
        output.parent.mkdir(parents=True, exist_ok=True)
        self._tasks.append((argv, str(folder), str(output)))
        self._after += [lambda: self.keep(output, name), after]

    def run(self) -> None:
        """Run the commands that were noted, and keep their results."""
        with ThreadPoolExecutor(self._jobs) as threads:
            list(threads.map(self._work, (self._tasks[start :: self._jobs] for start in range(self._jobs))))
        for after in self._after:
            after()
        self._tasks, self._after = [], []

    def _work(self, tasks: list[tuple[list[str], str, str]]) -> None:
        worker = [sys.executable, "-c", WORKER]
        lines = "".join(json.dumps(task) + "\n" for task in tasks)
        done = subprocess.run(
            worker, input=lines, cwd=self.below, env=self.environment, stdout=subprocess.PIPE, text=True
        )
        if done.returncode or done.stdout.count("done\n") != len(tasks):
            sys.exit(f"The code of {self.checkout} could not be started; its error is above.")

    def keep(self, path: Path, name: str, times: bool = False) -> None:
        """Copy a file to ``name``. Of a text the paths of this machine are replaced; with ``times`` each number too."""
        target = self.kept / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            shutil.copyfile(path, target)
            return
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
        for pattern, word in self._replaced:
            text = re.sub(pattern, word, text)
        text = re.sub(r"\b20\d{6}T\d{6}Z", "DATE", text)
        if times:
            text = re.sub(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?", "DATE", text)
            text = re.sub(r"\b[0-9a-f]{16,}\b", "HASH", text)
            text = re.sub(r" +", " ", re.sub(r"\d+(\.\d+)?|null", "N", text))
        if path.suffix == ".html":
            text = self._without_assets(text)
        target.write_text(text, encoding="utf-8", errors="surrogateescape")

    def _without_assets(self, page: str) -> str:
        """Keep styles and scripts once, not in each page: one changed colour would make every page differ."""
        assets = self.kept / "assets"
        assets.mkdir(exist_ok=True)
        parts = re.split(r"(?<=<style>)(.*?)(?=</style>)|(?<=<script>)(.*?)(?=</script>)", page, flags=re.DOTALL)
        kept = []
        for number, (text, style, script) in enumerate(
            zip(parts[::3], [*parts[1::3], ""], [*parts[2::3], ""], strict=True)
        ):
            kept.append(re.sub(r"sha256-[\w+/=]+", "HASH", text))
            if asset := style or script:
                name = "style.css" if style else "script.js"
                (assets / f"{number}-{name}").write_text(asset, encoding="utf-8", errors="surrogateescape")
        return "ASSET".join(kept)

    def keep_texts(self, folder: Path, name: str) -> None:
        for path in sorted(folder.iterdir()):
            if path.suffix in TEXTS and path.name != "run.json":
                self.keep(path, f"{name}/{path.name}")


# --- write -----------------------------------------------------------------------------------------------------------


def write(net: Net, inputs: Path, quick: bool, runs: bool) -> None:
    data = _copied_inputs(inputs, net.below / "inputs")
    _add_examples(net, data, quick)
    _add_recordings(net, data, quick)
    for pipeline in [data / "pipeline.yaml", *sorted((data / "pipelines").glob("*.yaml"))]:
        for command, options in (("run", ["--dry-run"]), ("list", [])):
            words = [command, str(pipeline.relative_to(data)), *options]
            net.add(words, data, f"plans/{pipeline.stem}-{command}.txt")
    for pair in PAIRS:
        if all((data / each).exists() for each in pair):
            name = f"compare/{pair[0].replace('/', '-')}"
            net.add(["compare", *pair], data, f"{name}.txt")
            net.add(["compare", *pair, "--json=full"], data, f"{name}.json.txt")
    net.add(["--help"], data, "help/profpipe.txt")
    net.add(["schema"], data, "help/schema.json.txt")
    net.run()
    overview = (net.kept / "help" / "profpipe.txt").read_text(encoding="utf-8")
    for command in re.findall(r"^    ([a-z]+)\b", overview, re.MULTILINE):
        net.add([command, "--help"], data, f"help/{command}.txt")
    net.run()
    if runs:
        _write_runs(net, inputs)


def _copied_inputs(inputs: Path, to: Path) -> Path:
    """Copy examples, pipelines and recordings: commands write beside them, and names shall be those of a user."""
    ignore = shutil.ignore_patterns("__pycache__", "plots")
    for name in ("examples", "pipelines"):
        shutil.copytree(inputs / name, to / name, ignore=ignore)
    shutil.copyfile(inputs / "pipeline.yaml", to / "pipeline.yaml")
    shutil.copytree(inputs / "tests" / "data", to / "data", ignore=ignore)
    shared = inputs.parent / "shared" / "data"
    if shared.is_dir():
        shutil.copytree(shared, to / "shared", ignore=ignore)
    else:
        print(f"no recordings in {shared}: those in tests/data only", file=sys.stderr)
    for packed in [*(to / "data").rglob("*.sqlite.gz"), *(to / "shared").rglob("*.sqlite.gz")]:
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    return to


def _sample(paths: Iterable[Path], quick: bool) -> list[Path]:
    ordered = sorted(paths)
    return sorted(random.Random(SEED).sample(ordered, min(QUICK, len(ordered)))) if quick else ordered


def _add_examples(net: Net, data: Path, quick: bool) -> None:
    for run in _sample((path.parent for path in data.glob("examples/*/run.json")), quick):
        # A copy, since `compare` reads the folder as it is; without the pages, so that those that are kept are new.
        copy = shutil.copytree(run, data / "rendered" / run.name)
        for page in copy.iterdir():
            if page.suffix in (".md", ".txt", ".html"):
                page.unlink()
        name = f"examples/{run.name}"
        net.add(
            ["report", f"rendered/{run.name}"],
            data,
            f"{name}/printed.txt",
            lambda copy=copy, name=name: net.keep_texts(copy, name),
        )


def _add_recordings(net: Net, data: Path, quick: bool) -> None:
    files = [path for top in ("data", "shared") for path in (data / top).rglob("*") if path.is_file()]
    files = [path for path in files if path.suffix not in NO_RECORDINGS]
    chosen = [[path] for path in _sample(files, quick)]
    beside: dict[Path, list[Path]] = {}
    for path in sorted(files):
        beside.setdefault(path.parent, []).append(path)
    several = _sample((folder for folder, paths in beside.items() if len(paths) > 1), quick)
    for paths in [*chosen, *(beside[folder] for folder in several)]:
        names = [str(path.relative_to(data)) for path in paths]
        out = Path("tables", names[0] if len(names) == 1 else f"{Path(names[0]).parent}/all")
        net.add(
            ["ingest", *names, "--out", str(out)],
            data,
            f"recordings/{out.relative_to('tables')}/printed.txt",
            lambda out=out: _keep_tables(net, data / out, f"recordings/{out.relative_to('tables')}"),
        )


def _keep_tables(net: Net, folder: Path, name: str) -> None:
    for path in sorted(folder.glob("*")):
        if path.suffix == ".parquet" or path.name == "SUMMARY.md":
            net.keep(path, f"{name}/{path.name}")


def _write_runs(net: Net, inputs: Path) -> None:
    """Run the cases, run them again with a kill in the middle, and render a run of the code of ``inputs``."""
    undisturbed, killed, foreign = (_project(net.below / name) for name in ("undisturbed", "killed", "foreign"))
    _profpipe(net, undisturbed, "run")
    expected = _tables(net, undisturbed, "runs/undisturbed")
    run = (undisturbed / "out" / "latest").resolve()
    listing = "\n".join(sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file()))
    (net.kept / "runs" / "files.txt").write_text(listing + "\n", encoding="utf-8")
    for name, options in (("history", []), ("history.json", ["--json"])):
        net.add(["history", *options], undisturbed, f"runs/{name}.txt")
    net.run()
    for name in ("history", "history.json"):
        net.keep(net.below / "outputs" / "runs" / f"{name}.txt", f"runs/{name}.txt", times=True)

    (killed / "hold").touch()
    command = [sys.executable, "-m", "profpipe", "run"]
    process = subprocess.Popen(
        command, cwd=killed, env=net.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while not (killed / "held").exists():
        if process.poll() is not None:
            sys.exit(f"{net.checkout}: the run ended before its third case")
        time.sleep(0.1)
    process.kill()
    process.wait()
    (killed / "hold").unlink()
    _profpipe(net, killed, "resume")
    resumed = _tables(net, killed, "runs/resumed")
    wrong = [line for name in expected for line in different_tables(expected[name], resumed[name], name)]
    text = "\n".join(wrong) or "A killed and resumed run has the tables of an undisturbed one."
    (net.kept / "runs" / "resumed.txt").write_text(text + "\n", encoding="utf-8")

    _profpipe(net, foreign, "run", inputs)
    run = (foreign / "out" / "latest").resolve()
    written = shutil.copytree(run, net.below / "written" / run.name)
    for page in run.iterdir():
        if page.suffix in (".md", ".txt", ".html"):
            page.unlink()
    _profpipe(net, foreign, "report", None, str(run))
    texts = sorted({path.name for folder in (run, written) for path in folder.iterdir() if path.suffix in TEXTS})
    wrong = [line for name in texts if name != "run.json" for line in different_texts(written / name, run / name, name)]
    text = "\n".join(wrong) or "`report` writes the pages that the code of the inputs wrote at the end of its run."
    (net.kept / "runs" / "foreign.txt").write_text(text + "\n", encoding="utf-8")


def _project(folder: Path) -> Path:
    folder.mkdir()
    (folder / "sums.py").write_text(WORKLOAD, encoding="utf-8")
    (folder / "pipeline.yaml").write_text(PIPELINE, encoding="utf-8")
    return folder


def _profpipe(net: Net, project: Path, command: str, checkout: Path | None = None, *words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "profpipe", command, *words],
        cwd=project,
        env={**net.environment, **({"PYTHONPATH": str(checkout)} if checkout else {})},
        capture_output=True,
        encoding="utf-8",
    )
    # 1: cases failed, as they should.
    if done.returncode != 1:
        sys.exit(f"{net.checkout}: {command} ended with {done.returncode}\n{done.stdout}{done.stderr}")


def _tables(net: Net, project: Path, name: str) -> dict[str, pd.DataFrame]:
    """Return and keep the tables of the only run of ``project``, without what differs between any two runs."""
    found = {}
    for path in sorted((project / "out" / "latest").glob("*.parquet")):
        frame = pd.read_parquet(path)
        frame = frame.drop(columns=[column for column in frame if column in MEASURED])
        if "source" in frame:
            frame["source"] = frame["source"].str.replace(r"capture-\d+", "capture", regex=True)
        if "metric" in frame:
            varies = frame["unit"].isin(["ns", "%"]) | (frame["metric"] == "iterations")
            frame["value"] = frame["value"].where(~varies)
        by_text = frame.astype(str).sort_values(list(frame.columns)).index
        found[path.name] = frame.loc[by_text].reset_index(drop=True)
        (net.kept / name).mkdir(parents=True, exist_ok=True)
        found[path.name].to_parquet(net.kept / name / path.name)
    return found


# --- compare ---------------------------------------------------------------------------------------------------------


def compare(a: Path, b: Path) -> int:
    """Print each difference between the folders and the sums; return 1 if there is one."""
    names = sorted({str(path.relative_to(folder)) for folder in (a, b) for path in folder.rglob("*") if path.is_file()})
    compared: Counter[str] = Counter()
    differing: Counter[str] = Counter()
    for name in names:
        kind = f"{Path(name).parts[0]}, {_kind(name)}"
        compared[kind] += 1
        if lines := list(_differences(a / name, b / name, name)):
            differing[kind] += 1
            print(*lines, sep="\n")
    print("| kind | compared | different |\n| --- | ---: | ---: |")
    for kind, count in compared.items():
        print(f"| {kind} | {count} | {differing[kind]} |")
    print(f"{len(names)} compared, {differing.total()} different")
    return 1 if differing or not names else 0


def _kind(name: str) -> str:
    if name.endswith(".parquet"):
        return f"table {Path(name).stem}"
    return {"printed.txt": "output", "results.json": "results.json", "report.html": "report.html"}.get(
        Path(name).name, "pages and texts"
    )


def _differences(a: Path, b: Path, name: str) -> Iterator[str]:
    if not (a.exists() and b.exists()):
        yield f"=== {name}: only in {'A' if a.exists() else 'B'}"
    elif filecmp.cmp(a, b, shallow=False):
        return
    elif a.suffix == ".parquet":
        yield from different_tables(pd.read_parquet(a), pd.read_parquet(b), name)
    else:
        yield from different_texts(a, b, name)


def different_tables(a: pd.DataFrame, b: pd.DataFrame, name: str) -> Iterator[str]:
    try:
        pd.testing.assert_frame_equal(a, b, check_exact=True)
    except AssertionError as error:
        yield f"=== {name}: {len(a)} and {len(b)} rows"
        yield str(error)[: LINES * WIDTH]


def different_texts(a: Path, b: Path, name: str) -> Iterator[str]:
    """Yield the first lines of a unified diff; a missing file is an empty one."""
    lines = [
        path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else [] for path in (a, b)
    ]
    found = list(difflib.unified_diff(*lines, lineterm="", n=1))
    if found:
        yield f"=== {name}"
        yield from (line[:WIDTH] for line in found[2 : LINES + 2])
        if len(found) > LINES + 2:
            yield f"... {len(found) - LINES - 2} more lines"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write", help="write what the code of a checkout gives")
    writing.add_argument("checkout", type=Path)
    writing.add_argument("folder", type=Path, help="a new folder for the results")
    writing.add_argument("--inputs", type=Path, default=ROOT, help="checkout of examples, pipelines and recordings")
    writing.add_argument("--quick", action="store_true", help="a seeded sample of examples and recordings")
    writing.add_argument("--runs", action="store_true", help="also run cases on the CPU")
    writing.add_argument("--jobs", type=int, default=2, help="commands at once (default: 2)")
    comparing = commands.add_parser("compare", help="print the differences of two such folders")
    comparing.add_argument("a", type=Path)
    comparing.add_argument("b", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return compare(options.a, options.b)
    options.folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="profpipe-net-") as below:
        net = Net(options.checkout.resolve(), options.folder.resolve(), Path(below).resolve(), options.jobs)
        write(net, options.inputs.resolve(), options.quick, options.runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
