"""What README shows of other files is what they hold. `pytest --regenerate` renews it."""

import re
from pathlib import Path

import pytest

from profpipe import tables

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
EXAMPLE = ROOT / "examples" / "h200-attention" / "SUMMARY.md"


def first_screen():
    """The report's title, answer and table of the fastest, a heading level lower."""
    text = EXAMPLE.read_text(encoding="utf-8")
    head = text[: text.index("What casts doubt on this:")]
    linked = re.sub(r"\]\((?!https?:|#)", "](examples/h200-attention/", head)
    return linked.replace("# attention", "### attention", 1).strip()


@pytest.mark.parametrize(("name", "made"), [("tables", tables.documentation), ("first screen", first_screen)])
def test_readme_shows_what_the_source_says(name, made, regenerate):
    text = README.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    before, rest = text.split(begin)
    shown, after = rest.split(end) if end in rest else ("", rest.split(end.lstrip())[1])
    if regenerate:
        README.write_text(f"{before}{begin}{made()}{end}{after}", encoding="utf-8")
    else:
        assert shown == made(), "renew it: pytest --regenerate tests/test_readme.py"
