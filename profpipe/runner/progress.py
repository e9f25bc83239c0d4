"""Show the progress of a run: one live line on a terminal, one plain line for each event anywhere else."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from profpipe.job import Job, JobOutcome, Status, Visit, count_cases, readable
from profpipe.stdio import for_drawing, visible_line

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

#: Drawing takes a core from the workload for a moment.
_REFRESH_PER_S = 2
_MAX_REASON = 200


class Display:
    """A ProgressListener for the command line. Use it as a context manager, so that the terminal is restored."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live: Live | None = None
        self._began = self._job_began = time.monotonic()
        self._job: Job | None = None
        self._index = self._total = 0
        self._seconds_of_jobs: list[float] = []
        self._case, self._visit = "", Visit()
        #: The status of each case that ended.
        self._ended: dict[str, str] = {}

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

    # --- events of the run ---

    def job_started(self, job: Job, index: int, total: int) -> None:
        self._job, self._index, self._total = job, index, total
        self._job_began, self._ended = time.monotonic(), {}
        # A command has no harness that reports its one case.
        self._case = job.cases[0].id if job.script is None else ""
        if not self._live:
            cases = count_cases(len(job.cases))
            self._print(f"{self._position()}: {readable(self._case) if self._case else cases}")

    def case_started(self, case: str, visit: Visit) -> None:
        self._case, self._visit = case, visit

    def case_ended(self, case: str, status: str, reason: str = "") -> None:
        self._ended[case] = status
        # The report gives the reason of a skip, once for all cases that share it. A failure is shown at once.
        failed = _is_bad(status)
        if self._job and (failed or not self._live):
            # textwrap.shorten would cut at a word, and a path is one word.
            line = " ".join(reason.split())
            line = line if len(line) <= _MAX_REASON else f"{line[: _MAX_REASON - 3]}..."
            why = f" ({line})" if failed and line else ""
            position = f"case {len(self._ended)} of {len(self._job.cases)}"
            self._print(f"  {position}: {readable(case)}: {Status(status)}{why}")

    def job_ended(self, outcome: JobOutcome) -> None:
        seconds = time.monotonic() - self._job_began
        if outcome.status is not Status.SKIPPED:
            self._seconds_of_jobs.append(seconds)
        bad, reason = sum(map(_is_bad, self._ended.values())), outcome.reason
        if outcome.status is Status.OK and bad:
            result = f"{bad} of {count_cases(len(outcome.job.cases))} not ok"
        else:
            reason = f"{reason}; log: {outcome.end.log}" if outcome.end.log else reason
            result = f"{outcome.status} ({reason})" if reason not in ("", outcome.status) else str(outcome.status)
        self._print(f"{self._position()}: {result}, {duration(seconds)}")

    def message(self, text: str) -> None:
        self._print(f"  {text}")

    # --- output ---

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(visible_line(self.line()), no_wrap=True, overflow="ellipsis")

    def line(self) -> str:
        """Return the state of the run: job, time so far, an estimate of the rest, and the case."""
        if self._job is None:
            return "starting"
        now = time.monotonic()
        parts = [self._position(), f"{duration(now - self._began)} so far"]
        done = len(self._ended) / len(self._job.cases)
        left_s = time_left(self._seconds_of_jobs, self._total - self._index, now - self._job_began, done)
        if left_s is not None:
            parts.append(f"about {duration(left_s)} left")
        if self._case:
            visit, case = self._visit, readable(self._case)
            round_text = f", round {visit.round} of {visit.rounds}" if visit.rounds > 1 else ""
            position = f"case {visit.number} of {len(self._job.cases)}{round_text}: " if self._job.script else ""
            parts.append(position + case)
        return " | ".join(parts)

    def _position(self) -> str:
        if self._job is None:
            return ""
        process = f", process {self._job.repeat} of {self._job.captures}" if self._job.is_repeated else ""
        return f"[{self._index}/{self._total}] {self._job.title}{process}"

    def _print(self, text: str) -> None:
        if self._live:
            # Brackets in our lines are not markup, and a long line wraps instead of losing its end.
            self._live.console.print(visible_line(text), markup=False, highlight=False, soft_wrap=True)
        else:
            print(visible_line(text), file=self._stream, flush=True)


def time_left(seconds_of_jobs: list[float], jobs_left: int, job_s: float, job_done: float) -> float | None:
    """Estimate the seconds until the end from the mean time of a job; None while nothing has ended yet.

    ``job_s`` are the seconds of the current job so far, ``job_done`` is its share of ended cases. Jobs under different
    profilers differ much, so this is a rough figure.
    """
    whole_job_s = job_s / job_done if job_done else None
    known = seconds_of_jobs + ([whole_job_s] if whole_job_s is not None else [])
    if not known:
        return None
    mean_s = sum(known) / len(known)
    return max((whole_job_s or mean_s) - job_s, 0.0) + jobs_left * mean_s


def duration(seconds: float) -> str:
    """Return ``8 s``, ``2:05`` (minutes) or ``1:02:05`` (hours)."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _is_bad(status: str) -> bool:
    return status not in (Status.OK, Status.SKIPPED)
