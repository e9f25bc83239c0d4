"""How often `profpipe bisect` names the right commit of 32, and how many processes that takes.

    python benchmarks/bisections.py [OUT/RUN-ab ...] [--repetitions 1000] [--deviation 0.02]
    python benchmarks/bisections.py --real FOLDER [--seeds 3]

The first form simulates the pairs and calls the same functions as the command. Their noise is drawn from the pairs of
A-A runs of `ab`, or is normal with the given standard deviation, with 3 % of the pairs five times as far off. The
second form makes repositories in FOLDER, whose program sleeps for a second, and runs the command on them: as many with
one commit that takes 10 % more, with two that take 6 % more each, and with none.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from profpipe.analysis import bisect, pairs, verdict  # noqa: E402
from profpipe.analysis.bisect import Bisection  # noqa: E402
from profpipe.results import pair_blocks, store  # noqa: E402
from profpipe.results.manifest import BisectEntry, BisectKind, Manifest  # noqa: E402
from profpipe.results.schema import Verdict  # noqa: E402

COMMITS = 32
#: What the program sleeps, in seconds.
SLEEP_S = 1.0


def plant(kind: str, rng: random.Random) -> dict[int, float]:
    """Return by commit how much longer than its parent it takes."""
    places = rng.sample(range(1, COMMITS + 1), 2)
    return {"one of 10 %": {places[0]: 0.10}, "none": {}, "two of 6 %": dict.fromkeys(places, 0.06)}[kind]


KINDS = ("one of 10 %", "two of 6 %", "none")


def find_levels(steps: Mapping[int, float]) -> list[float]:
    """Return log(time / time of GOOD) of each commit."""
    changes = [math.log1p(steps.get(number, 0.0)) for number in range(COMMITS + 1)]
    return [sum(changes[: number + 1]) for number in range(COMMITS + 1)]


def search(levels: Sequence[float], noise: Callable[[], float], more: int = 20) -> tuple[Bisection, int]:
    """Return what a search says whose pairs are ``levels`` and noise, and how many processes it takes."""
    entry = BisectEntry(tuple((str(number), "") for number in range(len(levels))), more)
    count = 0
    while question := (findings := bisect.analyze(entry)).question:

        def draw(number: int, change: float = levels[question.b] - levels[question.a]) -> tuple[float, ...]:
            return tuple(change + noise() for _ in range(number))

        ratios, further = draw(findings.pairs), 0
        count += 2 * len(ratios)
        is_clear = question.kind is BisectKind.LEVEL or verdict.is_clear(verdict.judge(ratios), ratios)
        if looks := () if is_clear else pair_blocks.looks(more):
            drawn = draw(looks[-1])
            judged = ((look, verdict.judge_further(drawn[:look])) for look in looks)
            decided = (look for look, j in judged if j and j.verdict is not Verdict.INCONCLUSIVE)
            further = next(decided, looks[-1])
            ratios = drawn[:further]
            count += 2 * further
        measured = replace(question, log_ratios=ratios, further_pairs=further)
        entry = replace(entry, comparisons=(*entry.comparisons, measured))
    return findings, count


def judge(findings: Bisection, steps: Mapping[int, float]) -> str:
    if findings.culprit is None:
        return "undecided" if findings.is_different else "no difference"
    return "right" if findings.culprit in steps else "wrong"


def make_noise(runs: Sequence[Path], deviation: float, rng: random.Random) -> Callable[[], float]:
    """Return what draws the noise of a pair: from the pairs of ``runs``, in either order, or from a distribution."""
    drawn = [ratio for run in runs for case in pairs.analyze(*store.load(run)).cases for ratio in case.log_ratios]
    if drawn:
        print(f"noise: {len(drawn)} recorded pairs, standard deviation {100 * statistics.pstdev(drawn):.1f} %")
        return lambda: rng.choice(drawn) * rng.choice((-1, 1))
    return lambda: rng.gauss(0.0, deviation * (5 if rng.random() < 0.03 else 1))


def simulate(runs: Sequence[Path], deviation: float, repetitions: int) -> None:
    rng = random.Random(1)
    noise = make_noise(runs, deviation, rng)
    print("| planted | right | wrong | undecided | no difference | more is left | processes: median, most |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for kind in KINDS:
        ends, counts, parts = Counter[str](), list[int](), 0
        for _ in range(repetitions):
            steps = plant(kind, rng)
            findings, count = search(find_levels(steps), noise)
            ends[judge(findings, steps)] += 1
            counts.append(count)
            parts += findings.culprit is not None and findings.part is not None
        cells = [ends[name] for name in ("right", "wrong", "undecided", "no difference")]
        print("|", kind, "|", " | ".join(map(str, cells)), "|", parts, "|", statistics.median(counts), max(counts), "|")


def make_repository(folder: Path, steps: Mapping[int, float]) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=bisect", "-c", "user.email=bisect@example.org"]
        subprocess.run(["git", "-C", str(folder), *identity, *words], check=True)

    folder.mkdir(parents=True)
    git("init", "--quiet")
    for number, level in enumerate(find_levels(steps)):
        text = (
            f"import time\n\n#: Number of the commit.\nNUMBER = {number}\ntime.sleep({SLEEP_S * math.exp(level):.4f})\n"
        )
        (folder / "bench.py").write_text(text, encoding="utf-8")
        git("add", "bench.py")
        git("commit", "--quiet", "--message", f"Change {number} of the program")


def run_real(folder: Path, seeds: int) -> None:
    for kind in KINDS:
        for seed in range(seeds):
            steps, place = plant(kind, random.Random(seed)), folder / f"{seed}-{kind.partition(' ')[0]}"
            make_repository(place, steps)
            words = [
                sys.executable,
                "-m",
                "profpipe",
                "bisect",
                f"HEAD~{COMMITS}..HEAD",
                "-q",
                "--",
                "python",
                "bench.py",
            ]
            done = subprocess.run(words, cwd=place, env=_environment(), stdout=subprocess.DEVNULL)
            record = Manifest.load(place / "out" / "latest")
            assert record.bisect is not None
            findings = bisect.analyze(record.bisect)
            runs = (place / "out" / "latest" / "runs").glob("[!.]*-ab/run.json")
            count = sum(len(json.loads(run.read_text())["jobs"]) for run in runs if not run.parent.is_symlink())
            left = "" if findings.part is None or findings.culprit is None else f", {findings.part:.0%} of the whole"
            about = f"seed {seed}, {kind} {sorted(steps)}: {judge(findings, steps)} ({findings.culprit}){left}"
            when = f"{record.started} to {record.ended}"
            print(f"{about}, exit code {done.returncode}, {count} processes, {when}", flush=True)


def _environment() -> Mapping[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "no_torch")])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="folders of A-A runs")
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--deviation", type=float, default=0.02)
    parser.add_argument("--real", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    if args.real:
        run_real(args.real, args.seeds)
    else:
        simulate(args.runs, args.deviation, args.repetitions)


if __name__ == "__main__":
    main()
