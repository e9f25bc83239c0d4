"""Programs without an optimizer: which of the calls of their modules are steps, and where the other calls go."""

import pytest
from nsys_exports import Export

from profpipe.ingest import reader
from profpipe.ingest.steps import calls
from profpipe.results.schema import STEP_PREFIX


def divided(*texts, ns=None):
    """Each part of the calls: its first and last call, and its kind, in brackets where it is no step."""
    every = [calls.read(text) for text in texts]
    found = calls.divide(every, ns or [1.0] * len(every))
    return [f"{p.first}-{p.last} {p.kind if p.is_step else f'({p.kind})'}" for p in found]


def test_a_loss_that_is_called_after_each_call_of_the_model_is_in_its_step():
    assert divided(*["Net", "Loss"] * 3, ns=[9.0, 1.0] * 3) == ["0-1 Net + Loss", "2-3 Net + Loss", "4-5 Net + Loss"]


def test_layers_that_a_program_calls_itself_make_one_step():
    layers = ["Block", "Block#2", "Block#3"]
    assert divided(*layers * 3, ns=[10.0, 11.0, 9.5] * 3) == [
        f"{n}-{n + 2} Block + Block#2 + Block#3" for n in (0, 3, 6)
    ]


def test_calls_of_other_modules_are_no_steps_and_the_step_before_them_has_no_known_end():
    image = ["TextEncoder", *["UNet"] * 4, "Decoder"]
    found = divided(*image * 2, ns=[900.0, *[3.0] * 4, 5.0, 1.0, *[3.0] * 4, 5.0])
    first = ["0-0 (TextEncoder)", "1-1 UNet", "2-2 UNet", "3-3 UNet", "4-4 (UNet)", "5-5 (Decoder)"]
    assert found[:6] == first and found[10:] == ["10-10 (UNet)", "11-11 (Decoder)"]


def test_a_module_that_is_called_once_makes_no_steps_however_long_it_takes():
    assert divided(*["Net"] * 3, "Big", *["Net"] * 3, ns=[1.0] * 3 + [999.0] + [1.0] * 3).count("4-4 Net") == 1


def test_plain_decides_which_module_makes_the_steps():
    # Under a profiler the host waits in the last call of an image for all of its work.
    assert divided("*UNet", "UNet", "Decoder", ns=[1.0, 1.0, 90.0]) == ["0-0 UNet", "1-1 (UNet)", "2-2 (Decoder)"]


def test_calls_that_autograd_records_are_of_another_kind_than_those_of_the_same_module_that_it_does_not():
    texts = ["*Net grad", "Loss grad"] * 3 + ["*Net", "Loss"] * 4
    steps = divided(*texts, ns=[9.0, 1.0] * 3 + [2.0, 0.1] * 4)
    assert steps[:3] == ["0-1 Net + Loss", "2-3 Net + Loss", "4-5 (Net + Loss)"]
    assert steps[3:5] == ["6-6 (Net without gradients)", "7-7 (Loss without gradients)"]
    # Calls of an inference without torch.no_grad() are of one kind.
    assert divided(*["Net 8x1 grad"] * 3) == ["0-0 Net", "1-1 Net", "2-2 Net"]


def test_replays_of_graphs_are_steps_with_what_follows_and_calls_before_them_are_none():
    warm_up = [f"LM {n}" for n in (512, 8, 4, 1)]
    tokens = ["CUDAGraph", "Head", "Sampler"]
    found = divided(*warm_up, *["LM 70", "Head", "Sampler", *tokens * 4] * 2, ns=[90.0] * 4 + [1.0] * 30)
    assert found[:4] == ["0-0 (LM)", "1-1 (LM)", "2-2 (LM)", "3-3 (LM)"]
    assert found[4:6] == ["4-6 (prefill)", "7-9 CUDAGraph + Head + Sampler"] and found[9] == "19-21 (prefill)"
    # A model that is called with tokens to warm up only has no prompts.
    assert divided("Bert 8x128", "Bert 8x128", *["CUDAGraph"] * 5)[:2] == ["0-0 (Bert)", "1-1 (Bert)"]


@pytest.mark.parametrize(
    ("texts", "prompts"),
    [
        (["LM 2x8", *["LM 2x1"] * 4] * 2, [0, 5]),
        # Without a cache the sequence grows. A recording may begin in the middle of it.
        ([f"LM 1x{n}" for n in (5, 6, 7, 3, 4, 5, 6)], [3]),
        # A prompt in chunks.
        (["LM 1x512", "LM 1x512", *["LM 1x1"] * 5], [0, 1]),
        (["Net 8x128"] * 6, []),
        (["Net"] * 6, []),
        # Continuous batching: 8 sequences, then one more prompt, alone or beside them; then one sequence ends.
        (["LM 400", *["LM 8"] * 9, "LM 90", *["LM 9"] * 9, "LM 99", *["LM 9"] * 5, "LM 8"], [0, 10, 20]),
        # Batches of ids, and the rest of them at the end of an evaluation.
        ([*["Net 1024"] * 4, "Net 300"] * 3, []),
        (["Net 1024", "Net 300"] * 8, []),
    ],
    ids=["cache", "no cache", "chunks", "batches", "unknown", "joined", "rest", "in turn"],
)
def test_a_prompt_is_told_from_decoding_by_the_tokens(texts, prompts):
    found = calls.divide([calls.read(text) for text in texts], [1.0] * len(texts))
    assert [part.first for part in found if part.kind == "prefill"] == prompts


@pytest.mark.parametrize("text", ["", "?", "LM 1x", "LM 1x2x3", "LM -1", f"LM {10**12}"])
def test_other_texts_are_calls_of_an_unknown_module(text):
    assert calls.read(text) == calls.Call()


def capture(tmp_path):
    """A recording by nsys of two requests: a prefill of 300 ns, and five tokens of 80 ns each."""
    export = Export()
    for n in range(12):
        at, is_prompt = 1000 * n, n % 6 == 0
        export.range(at, at + 1000, f"{STEP_PREFIX}forward:{n + 7} *LM 1x{64 if is_prompt else 1}")
        export.call(at + 10, at + 20, n + 1)
        name = "prefill_kernel" if is_prompt else "decode_kernel"
        export.kernel(at + 50, at + (350 if is_prompt else 130), n + 1, name)
    return export.write_sqlite(tmp_path / "x.sqlite")


def test_a_prefill_has_parts_and_kernels_beside_those_of_a_decode_step(tmp_path):
    path = capture(tmp_path)
    tables = reader.parse(reader.choose(path, reader.parsers()), path)
    rows = [(row.step, row.state, row.kind) for row in tables.steps.itertuples()]
    assert rows[:3] == [(7, "other", "prefill"), (8, "warmup", "LM"), (9, "steady", "LM")]
    assert rows[5:7] == [(12, "other", "LM"), (13, "other", "prefill")]
    assert set(tables.steps.loc[tables.steps["state"] == "steady", "compute_ns"]) == {80}
    assert set(tables.steps.loc[tables.steps["kind"] == "prefill", "compute_ns"]) == {300}
    kernels = tables.step_figures[tables.step_figures["metric"] == "step_call_kernel_time"]
    assert [(row.subject, row.value, row.n) for row in kernels.itertuples()] == [("prefill > prefill_kernel", 300.0, 2)]
