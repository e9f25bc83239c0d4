"""Show the progress of a run: one live line on a terminal, one plain line for each event anywhere else."""

from __future__ import annotations

import sys
import threading
import time
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
        self.began = 0.0
        self._index = self._total = 0
        self._case, self._number, self._round, self._rounds = "", 1, 1, 1
        #: The status of each case that ended.
        self._ended: dict[str, str] = {}
        #: Where the output begins that was not shown yet.
        self._shown: int | None = None

    def slot(self, name: str) -> ProgressListener:
        return self._display.slot(name)

    def job_started(self, job: Job, index: int, total: int) -> None:
        self.job, self._index, self._total, self.is_busy = job, index, total, True
        self._display.count_job(index, total)
        self.began, self._ended, self._shown = time.monotonic(), {}, None
        # A command has no harness that reports its one case.
        self._case = job.cases[0].id if job.script is None else ""
        if not self._display.is_live:
            cases = count_cases(len(job.cases))
            self._display.print(f"{self.position()}: {readable(self._case) if self._case else cases}")

    def case_started(self, case: str, number: int = 1, round: int = 1, rounds: int = 1) -> None:
        self._case, self._number, self._round, self._rounds = case, number, round, rounds

    def case_ended(self, case: str, status: str, reason: str = "") -> None:
        self._ended[case] = status
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
        seconds = time.monotonic() - self.began
        self.is_busy = False
        self._display.note_end(self, None if outcome.status is Status.SKIPPED else seconds)
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

    @property
    def done(self) -> float:
        """The share of the job's cases that have ended."""
        return len(self._ended) / len(self.job.cases) if self.job else 0.0

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
        self._began = time.monotonic()
        self._seconds_of_jobs: list[float] = []
        #: The number of the last job that has started, and of all jobs.
        self._started = self._jobs = 0
        #: By name. The slot of the jobs that run alone has none.
        self._slots: dict[str, _SlotDisplay] = {"": self}
        self._last: _SlotDisplay | None = None

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

    def count_job(self, index: int, total: int) -> None:
        """Note that a job has started."""
        self._started, self._jobs = max(index, self._started), total

    def note_end(self, slot: _SlotDisplay, seconds: float | None) -> None:
        """Note that the job of a slot has ended, and how long it took."""
        self._last = slot
        self._seconds_of_jobs += [] if seconds is None else [seconds]

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
        busy = [slot for slot in list(self._slots.values()) if slot.is_busy] or list(filter(None, [self._last]))
        if not busy:
            return "starting"
        now = time.monotonic()
        job_s, done = max((now - slot.began, slot.done) for slot in busy)
        left_s = time_left(self._seconds_of_jobs, self._jobs - self._started, job_s, done, len(busy))
        times = [f"{duration(now - self._began)} so far"]
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


def time_left(
    seconds_of_jobs: list[float], jobs_left: int, job_s: float, job_done: float, side_by_side: int = 1
) -> float | None:
    """Estimate the seconds until the end from the mean time of a job; None while nothing has ended yet.

    ``job_s`` are the seconds of the current job so far, ``job_done`` is its share of ended cases. Jobs under different
    profilers differ much, so this is a rough figure.
    """
    whole_job_s = job_s / job_done if job_done else None
    job_seconds = seconds_of_jobs + ([whole_job_s] if whole_job_s is not None else [])
    if not job_seconds:
        return None
    mean_s = sum(job_seconds) / len(job_seconds)
    return max((whole_job_s or mean_s) - job_s, 0.0) + jobs_left * mean_s / side_by_side


def duration(seconds: float) -> str:
    """Return ``8 s``, ``2 min 5 s`` or ``1 h 2 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _is_bad(status: str) -> bool:
    return status not in (Status.OK, Status.SKIPPED)
