"""Measure the time until Chromium shows report.html of each example, beside a bare HTML table of the same kernels.

    python benchmarks/pages.py [--rounds 5]

A page is shown when its first heading can be seen. Each time is the median of the rounds, after one load that does not
count. The table is what pandas writes of the same run's table of kernels. Needs Playwright (`make setup`) and Chromium
(`.ci/chromium`, or PROFPIPE_TEST_CHROMIUM).
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from profpipe_run import ROOT, environment

from profpipe.results import store

sys.path.insert(0, str(ROOT / "tests"))


def seconds(page: Any, path: Path, shown: str, rounds: int) -> float:
    """Return the median time until the first ``shown`` element of ``path`` is visible."""
    times = []
    for _ in range(rounds + 1):
        page.goto("about:blank")
        began = time.perf_counter()
        page.goto(path.as_uri())
        page.locator(shown).first.wait_for()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    from browsers import chromium as find_chromium
    from playwright.sync_api import sync_playwright

    browser = find_chromium()
    if browser is None:
        sys.exit("No Chromium here: run .ci/chromium, or set PROFPIPE_TEST_CHROMIUM to one.")

    print("| example | report.html | shown after | table of kernels | shown after |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = chromium.new_context(offline=True).new_page()
        for example in sorted(path.parent for path in ROOT.glob("examples/*/run.json")):
            run = Path(folder) / example.name
            shutil.copytree(example, run)
            command = [sys.executable, "-m", "profpipe", "report", str(run), "--quiet"]
            # Exit code 1: an example with a case that failed; 4 and 5: the gate of an `ab` failed or is undecided.
            if subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL).returncode not in (0, 1, 4, 5):
                sys.exit(f"profpipe report {example} failed")
            table = Path(folder) / f"{example.name}.html"
            store.load(run)[0].kernels.to_html(table)
            cells = []
            for path, shown in ((run / "report.html", "main h2"), (table, "th")):
                taken = seconds(page, path, shown, options.rounds)
                cells.append(f"{path.stat().st_size / 1e6:.2f} MB | {taken:.2f} s")
            print(f"| {example.name} | {' | '.join(cells)} |", flush=True)
        chromium.close()


if __name__ == "__main__":
    main()
