"""Show the progress of a run: one live line on a terminal, one plain line for each event anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from profpipe.job import Job, JobOutcome, ProgressListener, Status, count_cases, readable
from profpipe.masking import mask_printed
from profpipe.runner import artifacts
from profpipe.stdio import for_drawing, visible_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

#: Drawing takes a core from the workload for a moment.
_REFRESH_PER_S = 2
_MAX_REASON = 200
#: Lines of the output of a program that failed.
_TAIL_LINES = 15
_MAX_LINE = 2000


class _SlotDisplay(ProgressListener):
    """The progress of the jobs that run one after the other on one GPU, or alone."""

    def __init__(self, display: Display, name: str) -> None:
        self._display, self._prefix = display, f"{name} | " if name else ""
        self.job: Job | None = None
        self.is_busy = False
        self._began = 0.0
        self._index = self._total = 0
        #: The estimated seconds of each part of the job, of the parts that have ended, and of the one that runs.
        self._parts: Mapping[str, float] | None = None
        self._ended_s = self._part_s = self._part_began = 0.0
        self._case, self._number, self._round, self._rounds = "", 1, 1, 1
        #: The status of each case that ended.
        self._ended: dict[str, str] = {}
        #: Where the output begins that was not shown yet.
        self._shown: int | None = None

    def slot(self, name: str) -> ProgressListener:
        return self._display.slot(name)

    def job_started(
        self, job: Job, index: int, total: int, left: tuple[Mapping[str, float], float] | None = None
    ) -> None:
        self.job, self._index, self._total, self.is_busy = job, index, total, True
        self._began, self._ended, self._shown = time.monotonic(), {}, None
        # A command has no harness that reports its one case.
        self._case = job.cases[0].id if job.script is None else ""
        self._parts, self._display.later_s = left or (None, 0.0)
        parts = self._parts or {}
        self._ended_s, self._part_s, self._part_began = 0.0, sum(parts.values()), self._began
        if job.script is not None:
            self._part_s = parts.get("", 0.0)
        if not self._display.is_live:
            what = readable(self._case) if self._case else count_cases(len(job.cases))
            left_s = self.left_s(self._began)
            time_text = "" if left_s is None else f", about {duration(left_s)} left"
            self._display.print(f"{self.position()}: {what}{time_text}")

    def case_started(self, case: str, number: int = 1, round: int = 1, rounds: int = 1) -> None:
        self._case, self._number, self._round, self._rounds = case, number, round, rounds
        # The last visit also checks the result and times a loop: on a CPU it took three times as long as one before.
        part_s = (self._parts or {}).get(case, 0.0) * (rounds if round == rounds else 1) / (2 * rounds - 1)
        self._ended_s, self._part_s, self._part_began = self._ended_s + self._part_s, part_s, time.monotonic()

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the end of the run, or None.

        They are those of the estimate, longer by the share of the whole by which the job is behind its estimate.
        """
        parts = self._parts  # another thread may end the job meanwhile
        if parts is None:
            return None
        total_s = sum(parts.values()) + self._display.later_s
        done_s = self._ended_s + min(now - self._part_began, self._part_s)
        rate = 1 + (now - self._began - done_s) / total_s if total_s else 1.0
        return max(rate, 0.5) * max(total_s - done_s, 0.0)

    def case_ended(self, case: str, status: str, reason: str = "") -> None:
        self._ended[case] = status
        if self._parts is not None and status != Status.OK:
            # The time that it would have taken is not spent.
            self._part_s = min(self._part_s, time.monotonic() - self._part_began)
            self._parts = {**self._parts, case: self._part_s}
        # The report gives the reason of a skip, once for all cases that share it. A failure is shown at once.
        failed = _is_bad(status)
        if self.job and (failed or not self._display.is_live):
            # textwrap.shorten would cut at a word, and a path is one word.
            line = " ".join(mask_printed(reason).split())
            line = line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 3]}..."
            why = f" ({line})" if failed and line else ""
            position = f"case {len(self._ended)} of {len(self.job.cases)}"
            self.message(f"{position}: {readable(case)}: {Status(status)}{why}")

    def process_started(self, output_begin: int) -> None:
        self._shown = output_begin

    def job_runs(self, job: Job) -> None:
        if self._display.is_verbose:
            self._show_output(job)

    def _show_output(self, job: Job, most: int | None = None) -> None:
        """Print the lines of output since the last call, of which ``most`` the last ones."""
        if self._shown is None:
            return  # no process was started
        lines, self._shown = artifacts.read_lines(job, self._shown)
        for line in lines[-most:] if most else lines:
            self._display.print(f"{self._prefix}  | {line[:_MAX_LINE]}")

    def job_ended(self, outcome: JobOutcome) -> None:
        seconds = time.monotonic() - self._began
        self.is_busy = False
        self._display.last, self._parts = self, None
        bad, reason = sum(map(_is_bad, self._ended.values())), outcome.reason
        if outcome.status is Status.OK and bad:
            result = f"{bad} of {count_cases(len(outcome.job.cases))} not ok"
        else:
            reason = f"{reason}; log: {outcome.end.log}" if outcome.end.log else reason
            result = f"{outcome.status} ({reason})" if reason not in ("", outcome.status) else str(outcome.status)
        has_failed = outcome.status in (Status.FAILED, Status.TIMEOUT) and outcome.job.script is None
        if has_failed or self._display.is_verbose:
            self._show_output(outcome.job, None if self._display.is_verbose else _TAIL_LINES)
        self._display.print(f"{self.position()}: {result}, {duration(seconds)}")

    def message(self, text: str) -> None:
        self._display.print(f"{self._prefix or '  '}{text}")

    def position(self) -> str:
        job = self.job
        if job is None:
            return ""
        process = f", process {job.repeat} of {job.captures}" if job.is_repeated else ""
        return f"{self._prefix}[{self._index}/{self._total}] {job.title}{process}"

    def case(self) -> str:
        """Return which case the job is in, and its round."""
        if not self._case or self.job is None:
            return ""
        case = readable(self._case)
        round_text = f", round {self._round} of {self._rounds}" if self._rounds > 1 else ""
        position = f"case {self._number} of {len(self.job.cases)}{round_text}: " if self.job.script else ""
        return position + case


class Display(_SlotDisplay):
    """A ProgressListener for the command line, and the slot of the jobs that run alone.

    Use it as a context manager, so that the terminal is restored.
    """

    def __init__(self, stream: TextIO | None = None, *, is_verbose: bool = False) -> None:
        super().__init__(self, "")
        #: Whether the output of the programs is shown while they run.
        self.is_verbose = is_verbose
        self._stream = stream or sys.stderr
        self._live: Live | None = None
        self._printing = threading.Lock()
        self._run_began = time.monotonic()
        #: The estimated seconds of the jobs that have not started, and of the report.
        self.later_s = 0.0
        #: By name. The slot of the jobs that run alone has none.
        self._slots: dict[str, _SlotDisplay] = {"": self}
        #: The slot whose job has ended last.
        self.last: _SlotDisplay | None = None

    def __enter__(self) -> Display:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=for_drawing(self._stream))
            self._live = Live(self, console=console, refresh_per_second=_REFRESH_PER_S, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def slot(self, name: str) -> ProgressListener:
        """Return the listener of the jobs on a slot: ``GPU 1``. Its lines begin with the name."""
        return self._slots.setdefault(name, _SlotDisplay(self, name))

    @property
    def is_live(self) -> bool:
        return self._live is not None

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self.line(), no_wrap=True, overflow="ellipsis")

    def line(self) -> str:
        """Return the state of the run: the jobs, time so far, an estimate of the rest, and the cases.

        Jobs that run side by side have a line each.
        """
        busy = [slot for slot in list(self._slots.values()) if slot.is_busy] or list(filter(None, [self.last]))
        if not busy:
            return "starting"
        now = time.monotonic()
        left_s = max((left_s for slot in busy if (left_s := slot.left_s(now)) is not None), default=None)
        times = [f"{duration(now - self._run_began)} so far"]
        times += [f"about {duration(left_s)} left"] if left_s is not None else []
        first, *others = busy
        lines = [[first.position(), *times, first.case()], *([slot.position(), slot.case()] for slot in others)]
        return "\n".join(visible_line(" | ".join(filter(None, parts))) for parts in lines)

    def print(self, text: str) -> None:
        with self._printing:
            if self._live:
                # Brackets in our lines are not markup, and a long line wraps instead of losing its end.
                self._live.console.print(visible_line(text), markup=False, highlight=False, soft_wrap=True)
            else:
                print(visible_line(text), file=self._stream, flush=True)


def duration(seconds: float) -> str:
    """Return ``8 s``, ``2 min 5 s`` or ``1 h 2 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _is_bad(status: str) -> bool:
    return status not in (Status.OK, Status.SKIPPED)
