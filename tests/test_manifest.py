"""run.json as typed values."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from profpipe.errors import ConfigError
from profpipe.job import Status
from profpipe.results.manifest import FileEntry, JobEntry, Manifest, RefusedFile

EXAMPLES = sorted(Path(__file__).resolve().parents[1].glob("examples/*/run.json"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_a_manifest_is_the_same_after_it_was_saved_and_read(path, tmp_path):
    manifest = Manifest.load(path.parent)
    manifest.save(tmp_path)
    assert Manifest.load(tmp_path) == manifest
    assert manifest.is_run and manifest.ended and manifest.jobs and manifest.machine.gpus


def test_a_run_that_has_not_ended_stays_one():
    open_run = Manifest.parse(Manifest(ended=None).as_json())
    assert open_run.ended is None and open_run.is_run


def test_a_key_of_a_later_version_is_ignored():
    document = {"jobs": [{"workload": "w", "colour": "red"}], "colour": "red"}
    assert Manifest.parse(document).jobs == (JobEntry("w"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not the manifest of a run"),
        ('{"jobs": 1}', r"is not the manifest of a run: .*\njobs"),
        ('{"jobs": [' + "{}," * 100_000 + "{}]}", "jobs has 100,001 entries, more than 100,000"),
    ],
    ids=["cut", "list", "number", "too many jobs"],
)
def test_a_damaged_manifest_is_refused_with_the_reason(tmp_path, text, message):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(ConfigError, match=message):
        Manifest.load(tmp_path)


def test_an_entry_replaces_the_entry_of_an_earlier_try():
    again, other = JobEntry("w", folder="raw/w/plain"), JobEntry("v", folder="raw/v/plain")
    first = replace(again, status=Status.FAILED)
    assert Manifest().with_job(first).with_job(other).with_job(again).jobs == (other, again)


def test_a_job_is_removed_with_its_files_and_no_others():
    kept = FileEntry(source="raw/w/plain-2/job.jsonl")
    files = (FileEntry(source="raw/w/plain/job.jsonl"), kept)
    manifest = Manifest().with_job(JobEntry(folder="raw/w/plain"), files, [RefusedFile("raw/w/plain/capture.sqlite")])
    assert len(manifest.jobs) == 1 and len(manifest.files) == 2 and len(manifest.refused) == 1
    manifest = manifest.without_job("raw/w/plain")
    assert manifest.jobs == () and manifest.files == (kept,) and manifest.refused == ()


def test_the_kernel_families_of_several_jobs_of_a_workload_are_merged():
    plain, nsys = JobEntry("w", folder="raw/w/plain"), JobEntry("w", folder="raw/w/nsys")
    manifest = Manifest().with_job(plain, families={"a": "fa2"}).with_job(nsys, families={"b": "fa3"})
    assert manifest.expects == {"w": {"a": "fa2", "b": "fa3"}}


def test_the_manifest_of_ingested_files_holds_no_jobs():
    document = Manifest(name="tables", is_run=False).as_json()
    assert set(document) == {"schema_version", "name", "files", "refused"}
    assert not Manifest.parse(json.loads(json.dumps(document))).is_run
