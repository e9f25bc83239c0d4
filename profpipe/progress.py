"""Shows a run while it goes on: one live line on a terminal, one plain line for each event anywhere else.

A run is its files, and goes on to its end where nobody sees any of this.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO, cast

from profpipe.job import Job, Outcome, readable

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

#: Drawing takes a core from the workload for a moment, so it is done seldom.
_DRAWN_PER_S = 2
_NOWHERE = Path(os.devnull)


def open_closed_streams() -> None:
    """Gives what was started with ``2>&-`` or ``>&-`` the streams that Python has left out.

    Otherwise the first file that is opened would get a stream's number, and whatever a library prints.
    """
    sys.stdout = sys.stdout or _NOWHERE.open("w")
    sys.stderr = sys.stderr or _NOWHERE.open("w")


@contextmanager
def heard_or_not() -> Iterator[None]:
    """While entered, what is printed and cannot be is dropped, and ends nothing."""
    out, error = _Unfailing(sys.stdout), _Unfailing(sys.stderr)
    with redirect_stdout(cast(TextIO, out)), redirect_stderr(cast(TextIO, error)):
        try:
            yield
        finally:
            out.flush()
            error.flush()


class _Unfailing:
    """A stream that may go away: a pipe's reader, a terminal, the room on a disk."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._drop()

    def _drop(self) -> None:
        """What is still held back, and all that follows, goes nowhere: Python would fail again with it at its end."""
        with suppress(OSError), _NOWHERE.open("w") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())


class Display:
    """The Watch for the command line. Use as a context manager, so that the terminal is left as it was."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live: Live | None = None
        self._began = self._job_began = time.monotonic()
        self._job: Job | None = None
        self._index = self._total = 0
        self._case = ""
        self._cases_begun = self._cases_ended = self._cases_bad = 0
        self._seconds_of_jobs: list[float] = []

    def __enter__(self) -> Display:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream)
            self._live = Live(self, console=console, refresh_per_second=_DRAWN_PER_S, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    # --- what the runner tells ---

    def job_started(self, job: Job, index: int, total: int) -> None:
        self._job, self._index, self._total = job, index, total
        self._job_began, self._case = time.monotonic(), ""
        self._cases_begun = self._cases_ended = self._cases_bad = 0
        if not self._live:
            self._print(f"{self._position()}: {_count(len(job.cases), 'case')}")

    def case_started(self, case: str) -> None:
        self._case = case
        self._cases_begun += 1

    def case_ended(self, case: str, status: str, reason: str = "") -> None:
        self._cases_ended += 1
        bad = status not in ("ok", "skipped")
        self._cases_bad += bad
        # Of a skip the report gives the reason once for all cases that share it; a failure is told at once.
        if self._job and (bad or not self._live):
            why = f" ({_brief(reason)})" if bad and reason else ""
            self._print(f"  case {self._cases_ended} of {len(self._job.cases)}: {readable(case)}: {status}{why}")

    def job_ended(self, outcome: Outcome) -> None:
        seconds = time.monotonic() - self._job_began
        if outcome.status != "skipped":
            self._seconds_of_jobs.append(seconds)
        cases = f"{self._cases_bad} of {_count(len(outcome.job.cases), 'case')} not ok"
        result = cases if outcome.status == "ok" and self._cases_bad else _result(outcome)
        self._print(f"{self._position()}: {result}, {duration(seconds)}")

    def message(self, text: str) -> None:
        self._print(f"  {text}")

    # --- what is shown ---

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(self.line(), no_wrap=True, overflow="ellipsis")

    def line(self) -> str:
        """Where the run stands: job, case, time spent, and an estimate of the rest once there is something to go by."""
        if self._job is None:
            return "starting"
        now = time.monotonic()
        parts = [self._position(), f"{duration(now - self._began)} so far"]
        left_s = time_left(
            self._seconds_of_jobs,
            self._total - self._index,
            now - self._job_began,
            self._cases_ended / len(self._job.cases),
        )
        if left_s is not None:
            parts.append(f"about {duration(left_s)} left")
        if self._case:
            parts.append(f"case {self._cases_begun} of {len(self._job.cases)}: {readable(self._case)}")
        return " | ".join(parts)

    def _position(self) -> str:
        job = self._job
        return f"[{self._index}/{self._total}] {job.workload} under {job.profiler}" if job else ""

    def _print(self, text: str) -> None:
        if self._live:
            # Brackets in our lines are no markup, and a long line wraps rather than losing its end.
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            print(text, file=self._stream, flush=True)


def time_left(seconds_of_jobs: list[float], jobs_left: int, job_s: float, job_done: float) -> float | None:
    """Seconds until the end, from the mean of the jobs so far; ``job_done`` is the current job's share of ended cases.

    None while nothing has ended yet. Jobs under different profilers differ much, so it is a rough figure.
    """
    whole_job_s = job_s / job_done if job_done else None
    known = seconds_of_jobs + ([whole_job_s] if whole_job_s is not None else [])
    if not known:
        return None
    mean_s = sum(known) / len(known)
    return max((whole_job_s or mean_s) - job_s, 0.0) + jobs_left * mean_s


def duration(seconds: float) -> str:
    """``8 s``, ``2:05`` (minutes) or ``1:02:05`` (hours)."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _result(outcome: Outcome) -> str:
    return f"{outcome.status} ({outcome.reason})" if outcome.reason else outcome.status


def _brief(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= 200 else f"{line[:197]}..."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
