"""What the fuzz suites share: their dice and their time, and what reading an input takes."""

import os
import random
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

SEED = int(os.environ.get("PROFPIPE_FUZZ_SEED", "1"))
#: Seconds of all suites together.
SECONDS = float(os.environ.get("PROFPIPE_FUZZ_S", "12"))
#: Inputs that show a defect are left here. `benchmarks/hostile.py` says how tests/corpus names their place.
FINDS = Path(__file__).resolve().parents[1] / ".cache" / "fuzz"


@dataclass
class Costs:
    """What the inputs of one format took: CPU time, and memory beyond that of the process before."""

    inputs: int = 0
    longest_s: float = 0.0
    largest_bytes: int = 0


@dataclass
class Fuzz:
    """One suite: inputs are made and read until its share of the time is over."""

    share: float
    costs: dict[str, Costs] = field(default_factory=dict)
    finds: list[str] = field(default_factory=list)
    dice: random.Random = field(default_factory=lambda: random.Random(SEED))

    def rounds(self, at_least):
        end = time.monotonic() + self.share * SECONDS
        number = 0
        while number < at_least or time.monotonic() < end:
            yield number
            number += 1

    @contextmanager
    def measured(self, format):
        costs = self.costs.setdefault(format, Costs())
        _reset_peak()
        before, begin = _resident(b"VmRSS"), time.process_time()
        try:
            yield
        finally:
            costs.inputs += 1
            costs.longest_s = max(costs.longest_s, time.process_time() - begin)
            costs.largest_bytes = max(costs.largest_bytes, _resident(b"VmHWM") - before)

    def find(self, what, file=None):
        """Note a defect, and keep the input that shows it. Equal defects count once."""
        if what in self.finds:
            return
        self.finds.append(what)
        if file is not None and file.is_file():
            kept = FINDS / f"{len(self.finds)}-{file.name}"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(file.read_bytes())

    def end(self):
        """Print the table by format. Raises AssertionError where an input showed a defect, or took too long."""
        print("\n| format | inputs | tracebacks | longest | largest memory |\n| --- | ---: | ---: | ---: | ---: |")
        for format, costs in sorted(self.costs.items()):
            cells = (format, f"{costs.inputs:,}", len(self.finds), f"{costs.longest_s:.1f} s")
            print(f"| {' | '.join(map(str, cells))} | {costs.largest_bytes / 1e6:,.0f} MB |")
        assert not self.finds, f"seed {SEED}, inputs below {FINDS}:\n" + "\n".join(self.finds)
        assert max(costs.longest_s for costs in self.costs.values()) < 20


def mutated(data, dice, bytes_set, ends):
    """Return ``data`` with bytes set to some of ``bytes_set``, parts cut out or repeated, or its end cut off."""
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 8])):
        at, length = dice.randrange(max(len(changed), 1)), dice.choice([1, 1, 4, 200])
        kind = dice.choice(["set", "cut", "repeat", "end"])
        if kind == "set":
            changed[at : at + 1] = bytes([dice.choice(bytes_set)])
        elif kind == "cut":
            del changed[at : at + length]
        elif kind == "repeat":
            changed[at:at] = changed[at : at + length]
        elif dice.random() < ends:
            del changed[max(at, 16) :]
    return bytes(changed)


def _reset_peak():
    with suppress(OSError):  # no Linux: the peak is that of the whole process
        Path("/proc/self/clear_refs").write_bytes(b"5")


def _resident(name):
    try:
        lines = Path("/proc/self/status").read_bytes().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)
