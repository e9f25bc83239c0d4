"""How often verdicts on pairs of processes are wrong, and how often they find a true change.

    python benchmarks/verdicts.py [--repetitions 4000] [--seed 1]
    python benchmarks/verdicts.py --measure OUT [--aa 6] [--changes 1,2,3,5] [--times 2] [--pairs 8] [--more 20]
    python benchmarks/verdicts.py --runs OUT/*-ab

The first form simulates, needs no GPU and makes the figures of benchmarks/README.md in six minutes. The median time
of a process is drawn as: the time of the code, times the effect of the process, times drift, times what is left of
sampling inside the process. Effects of processes are normal, bimodal (memory placed in one of two ways) or heavy-tailed
(Student's t with 3 degrees of freedom). Drift adds 1 % from the first to the last process. The tables:

1. how often rules call two sides different that run the same code;
2. the verdicts on 8 pairs where the code of B takes longer;
3. the verdicts on 8 pairs with up to 20 further ones;
4. how many visits and pairs a change of 5 % needs where visits to a case are in one of two states, 10 % apart.

The second form measures on this machine with `profpipe ab`: 16 cases of 100 equal operations each. A-A runs have the
same on both sides. For a change of 3 % B does 103 operations; a run has 16 cases of each change. The third form reads
such runs again. From the processes of all A-A runs it also draws 10,000 new blocks of pairs, each of one case, without
regard to which process was a pair. From the processes of further pairs it draws blocks of 10 in the same way.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from profpipe.analysis import pairs, verdict  # noqa: E402
from profpipe.analysis.verdict import Judgement  # noqa: E402
from profpipe.results import pair_blocks, store  # noqa: E402
from profpipe.results.pair_blocks import PairBlock  # noqa: E402
from profpipe.results.schema import Verdict  # noqa: E402

#: The standard deviation of the median of one process, by its samples alone.
SAMPLING = 0.001
DRIFT = 0.01
PAIRS = 8
CHANGES = (0.0, 0.01, 0.02, 0.03, 0.05)

Effect = Callable[[random.Random], float]


def normal(sd: float) -> Effect:
    return lambda rng: rng.gauss(0.0, sd)


def bimodal(sd: float) -> Effect:
    """Two levels, equally likely, with some spread around each. Their standard deviation is ``sd``."""
    level, around = 0.95 * sd, math.sqrt(1 - 0.95**2) * sd
    return lambda rng: rng.choice((-level, level)) + rng.gauss(0.0, around)


def heavy_tailed(sd: float) -> Effect:
    """Student's t with 3 degrees of freedom, whose variance is 3."""

    def draw(rng: random.Random) -> float:
        chi_square = sum(rng.gauss(0.0, 1.0) ** 2 for _ in range(3))
        return sd / math.sqrt(3) * rng.gauss(0.0, 1.0) / math.sqrt(chi_square / 3)

    return draw


EFFECTS = {
    f"{name}, sd {100 * sd:g} %": effect(sd)
    for name, effect in (("normal", normal), ("bimodal", bimodal), ("heavy-tailed", heavy_tailed))
    for sd in (0.005, 0.01)
}


def two_states(slow_share: float) -> Effect:
    """A time that is 10 % longer with probability ``slow_share``, and varies by 0.3 % in both states."""
    return lambda rng: (math.log1p(0.1) if rng.random() < slow_share else 0.0) + rng.gauss(0.0, 0.003)


#: Shares of visits, or of processes, that are slow.
STATES = (0.5, 0.25, 0.1)


@dataclass(frozen=True)
class Machine:
    """A machine on which processes of one program vary by ``effect``, and all of them by ``drift`` over a session.

    With ``of_visits`` the visits to a case in one process vary by this too, independently of each other. The time of a
    process is the mean of ``visits`` visits.
    """

    effect: Effect
    drift: float = 0.0
    of_visits: Effect | None = None
    visits: int = 1

    def _process(self, rng: random.Random) -> float:
        if self.of_visits is None:
            return self.effect(rng)
        mean = statistics.fmean(math.exp(self.of_visits(rng)) for _ in range(self.visits))
        return self.effect(rng) + math.log(mean)

    def log_times(self, sides: Sequence[bool], change: float, rng: random.Random) -> list[float]:
        """Return the log of the median time of each process in their order; True is a process of B."""
        step = math.log1p(self.drift) / max(1, len(sides) - 1)
        return [
            self._process(rng) + rng.gauss(0.0, SAMPLING) + i * step + (math.log1p(change) if is_b else 0.0)
            for i, is_b in enumerate(sides)
        ]


def log_ratios(machine: Machine, pairs: int, change: float, rng: random.Random) -> list[float]:
    """Return log(B / A) of each pair; which side of a pair comes first is drawn."""
    firsts = [rng.random() < 0.5 for _ in range(pairs)]
    times = machine.log_times([side for first in firsts for side in (first, not first)], change, rng)
    return [
        times[2 * i] - times[2 * i + 1] if first else times[2 * i + 1] - times[2 * i] for i, first in enumerate(firsts)
    ]


# --- rules that use fewer processes, or other orders -----------------------------------------------------------------


def one_process_a_side(machine: Machine, rng: random.Random) -> bool:
    """The 95 % intervals of one process each, from their own samples, do not overlap."""
    a, b = machine.log_times([False, True], 0.0, rng)
    return abs(a - b) > 2 * 1.96 * SAMPLING


def three_pairs_agree(machine: Machine, rng: random.Random) -> bool:
    return len({ratio > 0 for ratio in log_ratios(machine, 3, 0.0, rng)}) == 1


def blocks_of_ten(machine: Machine, rng: random.Random) -> bool:
    """Ten processes of A, then ten of B; the U test of Mann and Whitney at 5 %, by its normal approximation."""
    times = machine.log_times([False] * 10 + [True] * 10, 0.0, rng)
    u = sum(b > a for a in times[:10] for b in times[10:])
    z = (abs(u - 50) - 0.5) / math.sqrt(10 * 10 * 21 / 12)
    return 2 * (1 - statistics.NormalDist().cdf(z)) <= 0.05


def eight_pairs(machine: Machine, rng: random.Random) -> bool:
    return verdict.judge(log_ratios(machine, PAIRS, 0.0, rng)).verdict in (Verdict.FASTER, Verdict.SLOWER)


RULES = {
    "one process a side": one_process_a_side,
    "three pairs, unanimous": three_pairs_agree,
    "two blocks of ten, U test": blocks_of_ten,
    f"{PAIRS} interleaved pairs": eight_pairs,
}


def false_rate(rule: Callable[[Machine, random.Random], bool], machine: Machine, repetitions: int, seed: int) -> float:
    """Return the share of repetitions in which ``rule`` calls the same code different."""
    rng = random.Random(seed)
    return sum(rule(machine, rng) for _ in range(repetitions)) / repetitions


def verdict_shares(machine: Machine, change: float, repetitions: int, seed: int) -> dict[Verdict, float]:
    """Return the share of each verdict after ``PAIRS`` pairs, where B takes ``change`` longer than A."""
    rng = random.Random(seed)
    found = [verdict.judge(log_ratios(machine, PAIRS, change, rng)).verdict for _ in range(repetitions)]
    return {each: found.count(each) / repetitions for each in Verdict}


# --- further pairs ---------------------------------------------------------------------------------------------------


def with_further_pairs(machine: Machine, change: float, most: int, rng: random.Random) -> tuple[Verdict, int]:
    """Return the verdict with up to ``most`` further pairs, and how many were measured."""
    first = log_ratios(machine, PAIRS, change, rng)
    judged = verdict.judge(first)
    if verdict.is_clear(judged, first):
        return judged.verdict, 0
    further = log_ratios(replace(machine, visits=pair_blocks.VISITS), most, change, rng)
    last = verdict.judge_further(further)
    assert last is not None
    return last.verdict, last.pairs


def further_shares(
    machine: Machine, change: float, repetitions: int, seed: int, most: int = pair_blocks.OFFERED
) -> tuple[dict[Verdict, float], float]:
    """Return the share of each verdict with up to ``most`` further pairs, and the mean number of further pairs.

    The mean is over the repetitions that had further pairs.
    """
    rng = random.Random(seed)
    found = [with_further_pairs(machine, change, most, rng) for _ in range(repetitions)]
    verdicts, used = [each for each, _ in found], [count for _, count in found if count]
    return {each: verdicts.count(each) / repetitions for each in Verdict}, statistics.fmean(used) if used else 0.0


def found_share(machine: Machine, change: float, count: int, repetitions: int, seed: int) -> float:
    """Return the share of repetitions in which up to ``count`` further pairs call B slower."""
    rng = random.Random(seed)
    found = (verdict.judge_further(log_ratios(machine, count, change, rng)) for _ in range(repetitions))
    return sum(each is not None and each.verdict is Verdict.SLOWER for each in found) / repetitions


def state_machines() -> Iterator[tuple[str, Machine]]:
    """Yield machines on which visits, or whole processes, are in one of two states, 10 % apart."""
    for share in STATES:
        yield f"visits in two states, {100 * share:g} % slow", Machine(lambda rng: 0.0, 0.0, two_states(share))
    yield "processes in two states, 50 % slow", Machine(two_states(0.5))


# --- measured runs ---------------------------------------------------------------------------------------------------

SCRIPT = """
import torch

PARAMS = {"work": "mm 1536", "count": 100, "change": 0, "changed": False}


def build(params):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    operation, size = params["work"].split()
    size = int(size)
    dtype = torch.float16 if operation == "mm" and device == "cuda" else torch.float32
    a, b, out = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(3))
    run = {
        "mm": lambda: torch.mm(a, b, out=out),
        "add": lambda: torch.add(a, b, out=out),
        "copy": lambda: out.copy_(a),
        "softmax": lambda: torch.softmax(a, -1, out=out),
    }[operation]
    count = params["count"] + params["change"] * params["changed"]

    def call():
        for _ in range(count):
            run()

    return call
"""

PIPELINE = """
version: 1
name: seeded
workloads:
  operations:
    script: operations.py
    profilers: [plain]
    matrix: {{work: [{works}], change: [{changes}]}}
"""

#: Rows of the operands. A hundred kernels of 2 to 5 us differ by 2 to 5 % between processes; these take longer.
PRODUCTS = (1536, 2048, 3072, 4096)
OTHERS = (3072, 3584, 4096, 5120)
WORKS = [f"mm {size}" for size in PRODUCTS] + [f"{op} {size}" for op in ("add", "copy", "softmax") for size in OTHERS]

BLOCKS = 10_000


def measure(args: argparse.Namespace) -> list[Path]:
    """Run the A-A runs and those with seeded changes; return the folders of all runs in ``args.measure``."""
    out: Path = args.measure
    out.mkdir(parents=True, exist_ok=True)
    (out / "operations.py").write_text(SCRIPT, encoding="utf-8")
    runs = [("0", ["--aa", "--gate", "1"])] * args.aa
    if args.changes:
        runs += [(args.changes, ["--b", "set:changed=true"])] * args.times
    for changes, words in runs:
        # Every run has a separate results folder, so that the spread of A-A runs does not raise later floors.
        folder = out / f"run-{len(list(out.glob('run-*.yaml'))) + 1:02d}"
        folder.mkdir()
        pipeline = out / f"{folder.name}.yaml"
        pipeline.write_text(PIPELINE.format(works=", ".join(WORKS), changes=changes), encoding="utf-8")
        argv = [sys.executable, "-m", "profpipe", "ab", str(pipeline), *words]
        argv += ["--pairs", str(args.pairs), "--captures", "0", "--quiet", "--out", str(folder)]
        argv += ["--more", str(args.more)] if args.more else []
        began = time.monotonic()
        done = subprocess.run(argv, cwd=ROOT, check=False)
        if done.returncode not in (0, 4, 5):
            sys.exit(f"{' '.join(argv)} ended with {done.returncode}")
        print(f"{folder.name}: {' '.join(words)}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return sorted(path.parent for path in out.glob("run-*/[!.]*-ab/run.json") if not path.parent.is_symlink())


def print_runs(folders: Sequence[Path], seed: int) -> None:
    """Print the first verdicts of measured runs by what B changed, and false ones among resampled pairs."""
    verdicts: dict[str, Counter[str]] = {}
    directions: Counter[str] = Counter()
    gates: Counter[str] = Counter()
    times: dict[tuple[PairBlock, str], list[float]] = {}
    further: list[str] = []
    for folder in folders:
        data, run = store.load(folder)
        found = pairs.analyze(data, run)
        assert run.ab is not None
        gates.update([found.gate.verdict.value] if found.gate and run.ab.is_aa else [])
        for case in found.cases:
            # The block of a gate is measured only after a first one that fails it, and would hide its verdict.
            judged = case.judgement if case.further_pairs else case.first or case.judgement
            change = "A-A" if run.ab.is_aa else f"+{case.case.rpartition('change=')[2]} %"
            verdicts.setdefault(change, Counter()).update([str(judged.verdict)] if judged else [])
            directions.update([change] if judged and judged.percent > 0 else [])
            if case.further_pairs and judged and case.first:
                before = f"{case.first.verdict}, {case.first.percent:+.1f} %"
                after = f"{judged.verdict}, {judged.percent:+.1f} %"
                further.append(f"| {change} | {case.case} | {before} | {case.further_pairs} | {after} |")
        if run.ab.is_aa:
            rows = data.metrics[(data.metrics["metric"] == "time") & (data.metrics["subject"] != "")]
            for name, subject, value in zip(rows["case"], rows["subject"], rows["value"], strict=True):
                block = pair_blocks.block_of(int(subject.split()[1]), run.ab)
                # Processes of the block of a gate are like those of the first.
                kind = PairBlock.FURTHER if block is PairBlock.FURTHER else PairBlock.FIRST
                times.setdefault((kind, name), []).append(math.log(value))
    heads = ("cases", *Verdict, "estimates above 0")
    print(f"| B | {' | '.join(heads)} |\n| --- |{' ---: |' * len(heads)}")
    for change, counted in verdicts.items():
        cells = (counted.total(), *(counted[str(each)] for each in Verdict), directions[change])
        print(f"| {change} | {' | '.join(map(str, cells))} |")
    if gates:
        print(f"\nGates of A-A runs: {', '.join(f'{count} {name}' for name, count in sorted(gates.items()))}")
    if further:
        print("\n| B | case | first block | further pairs | after them |\n| --- | --- | --- | ---: | --- |")
        print("\n".join(further))
    for kind, count in ((PairBlock.FIRST, PAIRS), (PairBlock.FURTHER, pair_blocks.FIRST_LOOK)):
        if processes := [logs for (block, _), logs in times.items() if block is kind and len(logs) >= 2 * count]:
            judge = verdict.judge if kind is PairBlock.FIRST else verdict.judge_further
            rate = redrawn_false_rate(processes, count, judge, random.Random(seed))
            pairs_of = "further pairs" if kind is PairBlock.FURTHER else "pairs"
            print(
                f"\nFalse verdicts in {BLOCKS} blocks of {count} {pairs_of}, resampled in each case: {100 * rate:.2f} %"
            )


def redrawn_false_rate(
    processes: Sequence[Sequence[float]],
    count: int,
    judge: Callable[[Sequence[float]], Judgement | None],
    rng: random.Random,
) -> float:
    """Return the share of false verdicts in ``BLOCKS`` blocks of ``count`` pairs, each of the processes of one case."""
    false = 0
    for _ in range(BLOCKS):
        drawn = rng.sample(rng.choice(processes), 2 * count)
        judged = judge([b - a for a, b in zip(drawn[::2], drawn[1::2], strict=True)])
        false += judged is not None and judged.verdict in (Verdict.FASTER, Verdict.SLOWER)
    return false / BLOCKS


# --- output ----------------------------------------------------------------------------------------------------------


def machines() -> Iterator[tuple[str, Machine]]:
    for name, effect in EFFECTS.items():
        yield name, Machine(effect)
        yield f"{name}, drift {100 * DRIFT:g} %", Machine(effect, DRIFT)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--measure", type=Path, metavar="OUT", help="run profpipe ab here; the results go to OUT")
    parser.add_argument("--aa", type=int, default=6, help="A-A runs of --measure")
    parser.add_argument("--changes", default="1, 2, 3, 5", help="changes in %% of --measure; empty: none")
    parser.add_argument("--times", type=int, default=2, help="runs with the changes")
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of each run")
    parser.add_argument("--more", type=int, default=0, help="most further pairs of undecided cases (default: none)")
    parser.add_argument("--runs", type=Path, nargs="+", metavar="RUN", help="folders of ab runs to read")
    args = parser.parse_args()
    if args.measure:
        print_runs(measure(args), args.seed)
    elif args.runs:
        print_runs(args.runs, args.seed)
    else:
        print_pairs(args.repetitions, args.seed)
        print_further(args.repetitions, args.seed)


def print_pairs(repetitions: int, seed: int) -> None:
    print(f"1. False differences in %, the same code on both sides ({repetitions} repetitions)\n")
    print(f"| processes vary | {' | '.join(RULES)} |\n| --- |{' ---: |' * len(RULES)}")
    for name, machine in machines():
        rates = (100 * false_rate(rule, machine, repetitions, seed) for rule in RULES.values())
        print(f"| {name} | {' | '.join(f'{rate:.2f}' for rate in rates)} |")
    print(f"\n2. Verdicts on {PAIRS} interleaved pairs in %, by how much longer B takes ({repetitions} repetitions)\n")
    print(f"| processes vary | B takes | {' | '.join(Verdict)} |\n| --- | ---: |{' ---: |' * len(Verdict)}")
    for name, machine in machines():
        # Drift moves both sides of a pair alike, as the first table shows.
        for change in CHANGES if not machine.drift else ():
            shares = verdict_shares(machine, change, repetitions, seed)
            print(f"| {name} | +{100 * change:g} % | {' | '.join(f'{100 * s:.1f}' for s in shares.values())} |")


def print_further(repetitions: int, seed: int) -> None:
    few = repetitions // 8
    print(f"\n3. Verdicts with up to {pair_blocks.OFFERED} further pairs in % ({repetitions} and {few} repetitions)\n")
    heads = ("processes vary", "B takes", *Verdict, "further pairs, mean")
    print(f"| {' | '.join(heads)} |\n| --- | ---: |{' ---: |' * (len(heads) - 2)}")
    for name, machine in itertools.chain(machines(), state_machines()):
        for change in CHANGES if not machine.drift else (0.0,):
            shares, mean = further_shares(machine, change, few if change else repetitions, seed)
            cells = " | ".join(f"{100 * share:.{1 if change else 2}f}" for share in shares.values())
            print(f"| {name} | +{100 * change:g} % | {cells} | {mean:.1f} |", flush=True)
    print(f"\n4. A change of 5 % found by further pairs in %, half of the visits slow ({few} repetitions)\n")
    counts = [*pair_blocks.looks(pair_blocks.OFFERED), 30]
    print(f"| visits in a process | {' | '.join(f'{n} pairs' for n in counts)} |\n| ---: |{' ---: |' * len(counts)}")
    for visits in (1, 2, 4, 6, 8, 12):
        machine = Machine(lambda rng: 0.0, 0.0, two_states(0.5), visits)
        found = (found_share(machine, 0.05, count, few, seed) for count in counts)
        print(f"| {visits} | {' | '.join(f'{100 * share:.1f}' for share in found)} |", flush=True)


if __name__ == "__main__":
    main()
