"""A memory snapshot of torch is a pickle: it is read within limits, and nothing of it is executed."""

import copy
import gzip
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from profpipe.ingest import torch_snapshot

ROOT = Path(__file__).resolve().parents[1]
FRAMES = [{"filename": "train.py", "line": 12, "name": "forward"}]
BLOCK = {"size": 512, "requested_size": 400, "address": 1 << 46, "state": "active_allocated", "frames": FRAMES}
SEGMENT = {"total_size": 1 << 21, "segment_type": "small", "segment_pool_id": (0, 0), "blocks": [BLOCK]}
ENTRY = {"action": "alloc", "addr": 1 << 46, "size": 400, "stream": 0, "frames": FRAMES}
NOTE = {"stage": "START", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 1796024346267706}
SNAPSHOT = {"segments": [SEGMENT], "device_traces": [[ENTRY], []], "external_annotations": [NOTE]}


def with_segment(**more):
    return pickle.dumps({**SNAPSHOT, "segments": [{**SEGMENT, **more}]})


def with_block(**more):
    return with_segment(blocks=[BLOCK, {**BLOCK, **more}])


def nested(times):
    """Return a list of two references to a list of two references, and so on."""
    value = []
    for _ in range(times):
        value = [value, value]
    return value


def cyclic():
    trace = []
    trace.append(trace)
    return trace


def equal_hash(number):
    """Return a key with the hash 0, and None."""
    return pickle.dumps(number * ((1 << 61) - 1), 2)[2:-1] + b"N"


def text(words):
    return b"\x8c" + bytes([len(words.encode())]) + words.encode()


TWO, FOUR, SYSTEM = b"\x80\x02", b"\x80\x04", b"cos\nsystem\n(S'touch executed'\n"
A_NAME, DAMAGED, MEMORY = "asks for the Python object", "is damaged, or no pickle", "MB of memory"
HOSTILE = {
    "a place in the memo": (TWO + b"Nr\xff\xff\xff\x08.", MEMORY),
    "a memo without an end": (gzip.compress(b"]" + b"\x94" * (1 << 26)), MEMORY),
    "a long text": (FOUR + b"\x8d" + struct.pack("<Q", 1 << 40), MEMORY),
    "long bytes": (FOUR + b"\x8e" + struct.pack("<Q", 1 << 33), MEMORY),
    "a long array": (FOUR + b"\x96" + struct.pack("<Q", 1 << 33), MEMORY),
    "a long number": (TWO + b"\x8b" + struct.pack("<i", (1 << 31) - 1), MEMORY),
    "a long frame": (FOUR + b"\x95" + struct.pack("<Q", 1 << 40), MEMORY),
    "an unknown length": (FOUR + b"\x8e" + struct.pack("<Q", (1 << 64) - 1), DAMAGED),
    "a zip bomb": (gzip.compress(FOUR + b"\x8e" + struct.pack("<Q", 1 << 28) + bytes(1 << 28) + b"."), MEMORY),
    "equal hashes": (TWO + b"}(" + b"".join(map(equal_hash, range(60_000))) + b"u.", "s of CPU time"),
    "lists of lists": (b"]" * 300_000 + b"a" * 299_999 + b".", "it is of type list, and not dict"),
    "tuples of tuples as a key": (TWO + b"})" + b"\x85" * 900_000 + b"Ns.", "is damaged: it ends the process"),
    "references to references": (pickle.dumps({**SNAPSHOT, "segments": nested(60)}), "segments[0] is of type list"),
    "a cycle": (pickle.dumps({**SNAPSHOT, "device_traces": [cyclic()]}), "device_traces[0][0] is of type list"),
    "GLOBAL and REDUCE": (SYSTEM + b"tR.", f"{A_NAME} os.system"),
    "STACK_GLOBAL": (FOUR + text("os") + text("system") + b"\x93" + text("id") + b"\x85R.", f"{A_NAME} os.system"),
    "INST": (b"(S'touch executed'\nios\nsystem\n.", f"{A_NAME} os.system"),
    "OBJ": (b"(" + SYSTEM + b"o.", f"{A_NAME} os.system"),
    "NEWOBJ": (TWO + b"cbuiltins\nlist\n)\x81.", f"{A_NAME} builtins.list"),
    "a name of signs": (FOUR + text("o\ns\x1b[2J") + text("\u202e") + b"\x93.", f"{A_NAME} o\\ns\\x1b[2J.\\u202e"),
    "REDUCE of a text": (b"S'os.system'\n(S'touch executed'\ntR.", DAMAGED),
    "BUILD": (b"}(S'a'\nNdb.", DAMAGED),
    "EXT": (TWO + b"\x82\x01.", DAMAGED),
    "PERSID": (b"Pexecuted\n.", "asks for an object outside of the file"),
    "BINPERSID": (TWO + b"NQ.", "asks for an object outside of the file"),
    "a buffer outside": (b"\x80\x05\x97.", DAMAGED),
    "a cut pickle": (pickle.dumps(SNAPSHOT)[:-9], DAMAGED),
    "a cut zip": (gzip.compress(pickle.dumps(SNAPSHOT))[:-30], DAMAGED),
    "no pickle": (b"segments,total_size\n1,2\n", DAMAGED),
    "a number": (pickle.dumps(7), "is of type int, and not dict"),
    "no traces": (pickle.dumps({"segments": []}), "has no device_traces"),
    "segments of numbers": (pickle.dumps({**SNAPSHOT, "segments": [1]}), "segments[0] is of type int, and not dict"),
    "NaN": (with_block(size=float("nan")), "segments[0].blocks[1].size is of type float, and not int"),
    "True": (with_block(size=True), "segments[0].blocks[1].size is of type bool, and not int"),
    "a negative size": (with_block(size=-1), "segments[0].blocks[1].size is no whole number from 0 to 2**62 - 1"),
    "a huge number": (with_block(address=1 << 62), "segments[0].blocks[1].address is no whole number"),
    "bytes as a name": (with_block(frames=[{**FRAMES[0], "name": b"f"}]), "blocks[1].frames[0].name is of type bytes"),
    "half a character": (with_block(frames=[{**FRAMES[0], "name": "\ud800"}]), DAMAGED),
    "another key, too deep": (pickle.dumps({**SNAPSHOT, "later": 1})[:-2] + b"]" * 9999 + b"a" * 9998 + b"u.", DAMAGED),
    "a view without a memory": (b"\x80\x05N\x98.", DAMAGED),
    "digits": (b"I" + b"9" * 1_000_000 + b"\n.", DAMAGED),
    "nothing": (b"", DAMAGED),
}  # fmt: skip

READ = """
import resource, sys
from pathlib import Path
from profpipe.errors import UnreadableFile
from profpipe.ingest.reader import within_budget
from profpipe.ingest.torch_snapshot import read_snapshot

for name in sys.argv[1:]:
    try:
        with within_budget(Path(name)):
            print(read_snapshot(Path(name)))
    except UnreadableFile as error:
        print(error)
highest = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, highest)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return the folder, the answers by name, and the largest memory in KiB, under a fifth of the budget."""
    folder = tmp_path_factory.mktemp("snapshots")
    for name, (content, _) in HOSTILE.items():
        (folder / name).write_bytes(content)
    command, env = [sys.executable, "-c", READ, *HOSTILE], {"PROFPIPE_BUDGET": "0.2", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=True)
    *lines, sizes = done.stdout.splitlines()
    return folder, dict(zip(HOSTILE, lines, strict=True)), max(map(int, sizes.split()))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gets_one_line_that_names_it_and_what_to_do(answers, name):
    line = answers[1][name]
    assert line.startswith(f"{name}: ") and HOSTILE[name][1] in line
    assert line.isprintable() and line.isascii() and line.endswith((".", "=4."))


def test_nothing_is_executed_and_memory_stays_bounded(answers):
    assert sorted(path.name for path in answers[0].iterdir()) == sorted(HOSTILE)
    assert answers[2] < 400_000


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_snapshot_is_read_as_it_is_written(tmp_path, pack, protocol):
    written = copy.deepcopy(SNAPSHOT) | {"later": {1: (2.5, None)}}
    written["device_traces"][0][0]["frames"][0]["fx_node_op"] = "output"
    (tmp_path / "a.pickle").write_bytes(pack(pickle.dumps(written, protocol)))
    snapshot = torch_snapshot.read_snapshot(tmp_path / "a.pickle")
    assert snapshot == written
    assert snapshot["device_traces"][0][0]["frames"] is snapshot["segments"][0]["blocks"][0]["frames"]
