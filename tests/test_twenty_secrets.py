"""Secrets in every place that a user may put one, and a program that prints each: no published file holds one.

Files that only their owner may read and that ``private_files`` lists may hold them.
"""

import gzip
import json
import os
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import forked
import pandas as pd
import pytest
import test_masking

from profpipe.results import schema
from profpipe.scrub import exports

ROOT = Path(__file__).resolve().parents[1]
PYTHONPATH = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "no_torch")])

#: By the name of a variable: its value. The names of the first ones do not look secret.
VARIABLES = {
    "MY_DB_URL": "postgres://ann:Xq7-Vw2pLk9@db.example.org:5432/runs",
    "MIRROR": "mirror-of-the-models-7f3k9q",
    "WORDS": "correct-horse-battery-staple",
    "HF_TOKEN": "hf_QwErTyUiOpAsDfGhJkLzXcVbNm1234",
    "GH_TOKEN": "ghp_0123456789abcdefghijABCDEFGHIJ012345",
    "PAT_2": "github_pat_11AAAAAAA0abcdefghijkl_mnopqrstuvwxyz",
    "OPENAI_KEY": "sk-proj-abcdefghijklmnopqrstuvwx0123",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "SLACK_TOKEN": "xoxb-123456789012-abcdefGHIJKL",
    "GITLAB_TOKEN": "glpat-ABCDEFGHijklmnop1234",
    "NPM_TOKEN": "npm_abcdefghijklmnopqrstuvwxyz0123456789",
    "PYPI_TOKEN": "pypi-AgEIcHlwaS5vcmcCJGFiY2RlZg",
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVPmB92K27uhbUJU1p1r",
    "SIGNING_KEY": "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n"
    "-----END PRIVATE KEY-----",
    "DB_PASSWORD": 'tr0ub4dor&3 "quoted" \\ and more',
    "PIN_PASS": "83719264",
    "ODD_SECRET": "pässwörd,mit/Umlaut=%20",
}
#: Words that the user writes where no variable stands: as a parameter, an option, a URL.
LITERALS = {
    "parameter": "literal-api-key-value",
    "option": "literal-option-value",
    "url": "L1teral-Url-Pw",
    "form": "hf_LITERALabcdefghijklmnop0123456789",
    "joined option": "joined-option-value",
    "assigned": "correct-horse",
    "exported": "the-exported-value",
    "in a line": "the-value-in-a-line",
    "basic": "QWxhZGRpbjpvcGVuIHNlc2FtZTE=",
}
SECRETS = {
    **VARIABLES,
    "password of MY_DB_URL": "Xq7-Vw2pLk9",
    "line of SIGNING_KEY": "MIIEvQIBADANBgkqhkiG9w0B",
    **LITERALS,
}

PIPELINE = """
version: 1
name: secrets
defaults: {profilers: [plain], warmup: 1, repeats: 3, timing: {order: sequential, budget_s: 0.02}}
workloads:
  script:
    script: leaks.py
    env: {DB_PASSWORD: "${DB_PASSWORD}", SIGNING_KEY: "${SIGNING_KEY}", JWT: "${JWT}", PIN_PASS: "${PIN_PASS}"}
    params: {token: "${HF_TOKEN}", api_key: literal-api-key-value, db: "${MY_DB_URL}", odd: "${ODD_SECRET}"}
    matrix: {key: ["${GH_TOKEN}", "${OPENAI_KEY}"], fails: [0, 1]}
    baseline: {key: "${GH_TOKEN}"}
    exclude: [{key: "${OPENAI_KEY}", fails: 1}]
    include: [{key: "${SLACK_TOKEN}", fails: 0}]
  command:
    command: [python, leaks.py, --token, "${PAT_2}", "--url=https://u:L1teral-Url-Pw@example.org", --api-key,
              literal-option-value, "--aws={aws}", "hf_LITERALabcdefghijklmnop0123456789", "${MIRROR}/x",
              --auth-token=joined-option-value, DB_PASSWORD=correct-horse,
              "--env=A=1,MY_TOKEN=the-exported-value,B=2",
              "export X_SECRET=the-value-in-a-line; true", "Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZTE="]
    env: {NPM_TOKEN: "${NPM_TOKEN}", GITLAB_TOKEN: "${GITLAB_TOKEN}", PYPI: "x${PYPI_TOKEN}", WORDS: "${WORDS}"}
    matrix: {aws: ["${AWS_ACCESS_KEY_ID}"]}
    hook: false
tables:
  - {title: Times, workload: script, where: {key: ["${GH_TOKEN}"]}, rows: key, columns: fails, value: time}
"""
PROGRAM = """
import json, os, sys

PARAMS = {"fails": 0, "token": "", "api_key": "", "db": "", "odd": "", "key": ""}

def tell(given):
    for name, value in given.items():
        print(name, value, value.rpartition("=")[2] if isinstance(value, str) else "", flush=True)
        print(repr(value), json.dumps(value), "error:", value, file=sys.stderr)

def build(params):
    tell({**os.environ, **params})
    if params["fails"]:
        raise ValueError("cannot log in: " + " ".join(map(str, [*params.values(), *os.environ.values()])))
    return lambda: sum(range(1000))

if __name__ == "__main__":
    tell({**os.environ, **{str(i): word for i, word in enumerate(sys.argv)}})
    sys.exit("error: refused " + " ".join(sys.argv[1:]) + " for " + " ".join(os.environ.values()))
"""


def profpipe(folder, *words):
    variables = {**os.environ, **VARIABLES, "PYTHONPATH": PYTHONPATH}
    return forked.run(folder, *words, env=variables)


def decoded(path):
    """Yield the content of a file, as it is and decoded."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".gz":
        yield gzip.decompress(content)
    if path.suffix == ".parquet":
        yield pd.read_parquet(path).to_csv().encode()
    if content.startswith(b"SQLite format 3\0"):
        with closing(sqlite3.connect(path)) as database:
            yield "\n".join(database.iterdump()).encode()


def spellings(secret):
    return {text.encode() for text in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])}


def leaks(out):
    """Return the secrets in files that are not private, and the private files that hold one."""
    found, private = [], []
    for path in sorted(path for path in out.rglob("*") if path.is_file() and not path.is_symlink()):
        names = [
            name
            for name, secret in SECRETS.items()
            if any(spelling in content for content in decoded(path) for spelling in spellings(secret))
        ]
        run = out / path.relative_to(out).parts[0]
        listed = json.loads((run / "run.json").read_text())["private_files"] if run.is_dir() else []
        if names and path.stat().st_mode & 0o777 == 0o600 and str(path.relative_to(run)) in listed:
            private.append(path.relative_to(run))
        else:
            found += [f"{path.relative_to(out)}: {name}" for name in names]
    return found, private


def printed(done):
    text = (done.stdout + done.stderr).encode()
    return [name for name, secret in SECRETS.items() if any(spelling in text for spelling in spellings(secret))]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "leaks.py").write_text(PROGRAM)
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return folder


@pytest.mark.slow
def test_the_secrets_of_a_pipeline_are_in_private_files_only(project):
    done = profpipe(project, "run", "--set", "workloads.command.env.EXTRA_TOKEN=literal-option-value")
    assert done.returncode == 1, done.stderr
    assert printed(done) == []
    found, private = leaks(project / "out")
    assert found == []
    names = {path.name for path in private}
    assert {"request.json", "log.txt", "cases.json"} <= names
    run = (project / "out" / "latest").resolve()
    logs = "".join(path.read_text() for path in (run / "raw").rglob("log.txt"))
    assert all(secret in logs for name, secret in SECRETS.items()), "the programs printed every secret"
    cases = pd.read_csv(run / "cases.csv")
    failed = cases[cases["status"] == "failed"]["reason"]
    assert len(failed) == 2 and failed.str.contains(r"\$\{HF_TOKEN\}|\$\{PAT_2\}").all()
    assert cases["case"].str.contains(r"key=secret-[0-9a-f]{12},fails=0").sum() == 3


@pytest.mark.slow
def test_a_second_run_names_the_cases_alike_and_can_be_compared(project):
    done = profpipe(project, "run", "-w", "script")
    assert done.returncode == 1 and printed(done) == []
    names = [path.name for path in sorted((project / "out").glob("2*"))]
    tables = [pd.read_csv(project / "out" / name / "cases.csv").query("workload == 'script'") for name in names]
    assert list(tables[0]["case"]) == list(tables[1]["case"]) and list(tables[0]["params"]) == list(tables[1]["params"])
    for words in (["compare", *names], ["history"], ["report", names[0]], ["run", "--dry-run"], ["list"]):
        assert printed(profpipe(project, *words)) == [], words
    assert leaks(project / "out")[0] == []


@pytest.mark.slow
def test_the_secrets_of_a_program_are_in_private_files_only(project):
    words = [VARIABLES["HF_TOKEN"], f"--url={VARIABLES['MY_DB_URL']}", "--api-key", "literal-option-value", "{token}"]
    words += [LITERALS["form"], "--password=literal-api-key-value", "https://u:L1teral-Url-Pw@example.org"]
    options = [option for name in VARIABLES if name != "AWS_ACCESS_KEY_ID" for option in ("--env", name)]
    options += ["--set", f"token={VARIABLES['AWS_ACCESS_KEY_ID']}", "-p", "plain", "--out", "program"]
    done = profpipe(project, "run", *options, "--", sys.executable, "leaks.py", *words)
    assert done.returncode == 1 and printed(done) == [], done.stderr
    found, private = leaks(project / "program")
    assert found == [] and {"request.json", "log.txt"} <= {path.name for path in private}
    text = (project / "program" / "latest" / "pipeline.yaml").read_text()
    assert "token: ['${TOKEN}']" in text or "${TOKEN}" in text
    assert "# Set API_KEY, PASSWORD, SECRET" in text


@pytest.mark.slow
def test_a_resumed_run_has_the_same_cases_and_leaks_nothing(project):
    """A run whose second half was not done: what is measured later has the names of the first half."""
    assert profpipe(project, "run", "--out", "resumed").returncode == 1
    first = (project / "resumed" / "latest").resolve()
    record = json.loads((first / "run.json").read_text())
    kept = [job for job in record["jobs"] if job["workload"] == "command"]
    (first / "run.json").write_text(json.dumps({**record, "ended": None, "jobs": kept}))
    before = pd.read_csv(first / "cases.csv")
    done = profpipe(project, "resume", str(first))
    assert printed(done) == [] and done.returncode == 1, done.stderr
    assert set(pd.read_csv(first / "cases.csv")["case"]) == set(before["case"])
    assert leaks(project / "resumed")[0] == []


@pytest.mark.parametrize("changed", ["${HF_TOKEN", "workloads: {w: {script: '${HF_TOKEN}'}}", "name: '${MY_DB_URL}'"])
def test_an_error_of_the_pipeline_file_shows_no_secret(project, tmp_path, changed):
    (tmp_path / "pipeline.yaml").write_text(f"version: 1\n{changed}\n")
    done = profpipe(tmp_path, "run")
    assert done.returncode == 2 and printed(done) == []


def test_tables_without_a_secret_keep_all_their_rows():
    figures = schema.frame(schema.STEP_FIGURES, [{}])
    assert len(exports.mask_tables(schema.Tables(step_figures=figures), {}).step_figures) == 1


@pytest.mark.slow
def test_no_published_file_holds_a_secret_whatever_is_written_around_it(tmp_path):
    kinds = [*test_masking.SURROUNDINGS] * 5
    written = [[*test_masking.secrets_written(kind)] for kind in kinds]
    chosen = [texts[number % len(texts)] for number, texts in enumerate(written)]
    (tmp_path / "text").write_text("\n".join(text for _, text in chosen))
    (tmp_path / "p.py").write_text("import sys\ntext = open('text').read()\nprint(text)\nsys.exit('Error: ' + text)\n")
    done = profpipe(tmp_path, "run", "-p", "plain", "--", sys.executable, "p.py")
    assert done.returncode == 1 and len(chosen) >= 60
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file() and path.name != "log.txt"]
    texts = [
        done.stdout + done.stderr,
        *(content.decode(errors="replace") for path in files for content in decoded(path)),
    ]
    assert {"SUMMARY.md", "report.html", "run.json", "output.txt"} <= {path.name for path in files}
    assert [secret for secret, _ in chosen if any(test_masking.shown_parts(secret, text) for text in texts)] == []
