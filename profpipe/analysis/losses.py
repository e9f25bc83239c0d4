"""Whether a changed program computes what the unchanged one does, within the spread of that one over its seeds."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from profpipe.results import atomic, manifest

#: A curve of losses is compared in so many parts.
_WINDOWS: Final = 5
#: No band is narrower, as a share: a loop with a seed repeats bit for bit.
_LEAST_LOSS: Final = 0.005
_LEAST_NORM: Final = 0.05
#: No band of a norm is wider: a program that moves no parameter is outside, however far its seeds lie apart.
_MOST_NORM: Final = 0.9
#: A first loss that differs by more comes from another state, such as a checkpoint.
_LEAST_FIRST: Final = 0.05
#: Of an output of the same seed, as a share of its norm: bf16 has 8 bits.
_MOST_OUTPUT: Final = 0.05
#: The band is so many times as wide where one seed, or two, of a change are compared with five unchanged ones. A change
#: that alters only the order of random numbers, such as workers of a loader, then leaves it once in a hundred
#: comparisons, by a simulation of normal losses. The pairs have eight seeds, and need no wider one.
_WIDER: Final[Mapping[int, float]] = {1: 2.7, 2: 1.9}
#: Processes of a job that are read.
_MOST_FILES: Final = 64


@dataclass(frozen=True)
class Observation:
    """What ``profpipe.hook.observe`` noted of a process."""

    rank: int = 0
    losses: Sequence[float] = ()
    gradient_norm: Sequence[float] = ()
    parameter_change: Sequence[float] = ()
    output: Sequence[float] = ()
    uses: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    written: Sequence[str] = ()
    blocks: Mapping[str, Sequence[float]] = field(default_factory=dict)
    errors: Sequence[str] = ()


def read_observation(folder: Path) -> Observation | None:
    """Return what the first rank of a job in ``folder`` noted; None where it left no file that can be read."""
    observations = []
    for path in itertools.islice(sorted(folder.glob("hook.*.observed.*.json")), _MOST_FILES):
        # The program can write it too.
        with suppress(OSError, ValueError, RecursionError):
            observations.append(manifest.parse(Observation, json.loads(atomic.read_regular(path))))
    # Of several processes of one rank the one that trains says most.
    return min(observations, key=lambda noted: (noted.rank, -len(noted.losses)), default=None)


class LossComparison(NamedTuple):
    """``harm`` says what lies outside of the band, and is empty where nothing does. ``text`` has the figures."""

    text: str = ""
    harm: str = ""


def compare(changed: Mapping[int, Observation], unchanged: Mapping[int, Observation]) -> LossComparison:
    """Compare processes by their seeds. What is compared: losses, gradients, parameters, or else the first output."""
    seeds = sorted(changed.keys() & unchanged.keys())
    is_trained = any(observation.losses for observation in unchanged.values())
    if is_trained:
        # A process that ended before its first loss says nothing.
        unchanged = {seed: observation for seed, observation in unchanged.items() if observation.losses}
        seeds = [seed for seed in seeds if seed in unchanged]
    if not seeds:
        return LossComparison(harm="left nothing to compare")
    if not is_trained:
        return _compare_outputs([(changed[seed], unchanged[seed]) for seed in seeds])
    counts = {len(observation.losses) for observation in unchanged.values()}
    for seed in seeds:
        if abs(len(changed[seed].losses) - len(unchanged[seed].losses)) > max(counts) / 10:
            return LossComparison(harm=f"has {len(changed[seed].losses)} losses, not {len(unchanged[seed].losses)}")
        if all(map(math.isfinite, unchanged[seed].losses)) and not all(map(math.isfinite, changed[seed].losses)):
            return LossComparison(harm="its loss becomes infinite or is no number")
    compared = [*unchanged.values(), *(changed[seed] for seed in seeds)]
    length = min(len(observation.losses) for observation in compared)
    if not length:
        return LossComparison(harm="has no loss")
    first = _deviation(changed, unchanged, seeds, lambda o: o.losses[0], _LEAST_FIRST)
    if first.is_outside:
        what = "begins at another loss, as from a checkpoint or with other data"
        return LossComparison(f"loss {first.text}", f"{what}: {first.text}")
    deviations = [
        ("loss", _deviation(changed, unchanged, seeds, _mean_between(start, stop), _LEAST_LOSS))
        for start, stop in _windows(length)
    ]
    for name in ("gradient_norm", "parameter_change"):
        if all(getattr(observation, name) for observation in (*unchanged.values(), *changed.values())):
            norm = _deviation(changed, unchanged, seeds, _norm_of(name), _LEAST_NORM)
            deviations.append((name.replace("_", " "), norm._replace(band=min(norm.band, _MOST_NORM))))
    last_loss = [deviation for name, deviation in deviations if name == "loss"][-1]
    outside = next(((name, deviation) for name, deviation in deviations if deviation.is_outside), None)
    return LossComparison(f"loss {last_loss.text}", f"{outside[0]} {outside[1].text}" if outside else "")


class _Deviation(NamedTuple):
    """``share`` is how far the changed program is from the unchanged one, and ``band`` how far it may be."""

    share: float
    band: float

    @property
    def is_outside(self) -> bool:
        # A share that is no number is outside.
        return not abs(self.share) <= self.band

    @property
    def text(self) -> str:
        return f"{100 * self.share:+.2f} %, seeds ±{100 * self.band:.2f} %"


def _deviation(
    changed: Mapping[int, Observation],
    unchanged: Mapping[int, Observation],
    seeds: Sequence[int],
    value: Callable[[Observation], float],
    least: float,
) -> _Deviation:
    values = [value(observation) for observation in unchanged.values()]
    scale = statistics.fmean(map(abs, values)) or 1.0
    difference = statistics.fmean(value(changed[seed]) - value(unchanged[seed]) for seed in seeds)
    spread = (max(values) - min(values)) * _WIDER.get(len(seeds), 1.0)
    return _Deviation(difference / scale, max(spread / scale, least))


def _windows(length: int) -> Iterator[tuple[int, int]]:
    count = min(_WINDOWS, length)
    yield from ((length * i // count, length * (i + 1) // count) for i in range(count))


def _mean_between(start: int, stop: int) -> Callable[[Observation], float]:
    return lambda observation: statistics.fmean(observation.losses[start:stop])


def _norm_of(name: str) -> Callable[[Observation], float]:
    return lambda observation: math.hypot(*getattr(observation, name))


def _compare_outputs(both: Sequence[tuple[Observation, Observation]]) -> LossComparison:
    if not all(b.output and len(a.output) == len(b.output) for a, b in both):
        return LossComparison(harm="shows neither a loss nor an output of the same size")
    errors = [math.dist(a.output, b.output) / (math.hypot(*b.output) or 1.0) for a, b in both]
    error = max(errors) if all(map(math.isfinite, errors)) else math.inf
    text = f"first output {100 * error:.2f} %, limit {100 * _MOST_OUTPUT:g} %"
    return LossComparison(text, "" if error <= _MOST_OUTPUT else text)
