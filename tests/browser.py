"""Pages in a real Chromium without a network."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def executable():
    """The Chromium of the machine; skips the test where there is none."""
    found = os.environ.get("PROFPIPE_TEST_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        pytest.skip("no Chromium here: install Debian's chromium, or set PROFPIPE_TEST_CHROMIUM to one")
    return found


@contextmanager
def opened(path, **options):
    """The page of a file. Messages of the console, errors and requests other than of the file fail the test."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A smooth scroll goes on while a test looks for what to click on.
        arguments = ["--no-sandbox", "--disable-smooth-scrolling"]
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        try:
            context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}, **options)
            page = context.new_page()
            problems: list[str] = []
            page.on("console", lambda message: problems.append(f"console: {message.text}"))
            page.on("pageerror", lambda error: problems.append(f"error: {error}"))
            own = (path.as_uri(), "about:blank")
            page.on("request", lambda request: request.url.startswith(own) or problems.append(request.url))
            page.goto(path.as_uri())
            yield page
            assert problems == []
        finally:
            browser.close()
