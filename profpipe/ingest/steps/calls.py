"""Calls of modules by a program in which no optimizer steps: which calls are its steps, and what the others are.

An inference program calls several modules: a text encoder, a denoiser many times for one image, a decoder. The module
that takes the most time makes the steps. A loss or a sampler that is called after all of its calls is in the step. Of
a language model, a call with a prompt (prefill) is no step beside calls that decode one token.

Where a program replays CUDA graphs, a replay and the calls after it are a step, and calls of the model before them
were warm-up and captures.
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Final

from profpipe.ranges import REPLAY
from profpipe.results.schema import PREFILL

#: What the start-up hook says of a call: the module, after ``*`` where it makes the steps, and the tokens.
#: ``LlamaModel 8x512`` has a batch of 8 times 512, ``LlamaModel 512`` 512 of any sequences. ``grad``: gradients
#: are enabled where it is called. ``@1`` is the thread.
_TEXT: Final = re.compile(r"(\*?)([\w.#]+)(?: (?:(\d{1,9})x)?(\d{1,9}))?( grad)?(?: @(\d{1,9}))?")
#: Modules that are called nearly as often, and take nearly as much time, are equal. The first one makes the steps.
_AS_OFTEN, _AS_LONG = 0.9, 0.8
#: A module that makes the steps is called at least so often, as a share of the calls of the most frequent one.
_LEAST_OFTEN = 0.1
#: Training and its evaluation call one module. These calls are of two kinds.
_EVALUATED = " without gradients"
#: Modules of a step that are named beside the first one.
_MOST_NAMED = 2
#: Of calls with joined sequences, those with prompts are so few in a row and of all, and have so many more tokens.
_MOST_IN_A_ROW, _MOST_PROMPTS, _MORE_TOKENS = 3, 0.25, 2


@dataclass(frozen=True)
class Call:
    """A call of ``module``. ``batch`` is 0 where sequences are joined, and ``length`` is 0 where tokens are unknown."""

    module: str = ""
    batch: int = 0
    length: int = 0
    is_of_steps: bool = False
    has_gradients: bool = False
    thread: int = 0


def read(text: str) -> Call:
    """Return what ``text``, of the start-up hook, says of a call."""
    if not (match := _TEXT.fullmatch(text)):
        return Call()
    return Call(match[2], int(match[3] or 0), int(match[4] or 0), bool(match[1]), bool(match[5]), int(match[6] or 0))


@dataclass(frozen=True)
class Part:
    """Calls ``first`` to ``last`` of a process, which are a step, a part of none, or a call of another ``kind``.

    The kind of a step names its modules, ``Net + Loss``, and that of a call with a prompt is ``PREFILL``. It is empty
    where the part is not whole. ``is_step`` is False too where other work follows: the time until then is no step.
    """

    first: int
    last: int
    kind: str
    is_step: bool


def divide(calls: Sequence[Call], wall_ns: Sequence[float]) -> list[Part]:
    """Return the calls of a process as parts, in their order; ``wall_ns`` are their times."""
    of_module = Counter(call.module for call in calls)
    with_gradients = Counter(call.module for call in calls if call.has_gradients)
    trained = {name for name, count in with_gradients.items() if count >= _LEAST_OFTEN * of_module[name]}
    calls = [replace(c, module=c.module + _EVALUATED * (c.module in trained and not c.has_gradients)) for c in calls]
    module = _module_of_steps(calls, wall_ns)
    module_calls = [i for i, call in enumerate(calls) if call.module == module]
    tails = [tuple(call.module for call in calls[i + 1 : end]) for i, end in pairwise([*module_calls, len(calls)])]
    # The last call may be cut.
    usual = Counter(tails[:-1] or tails).most_common(1)[0][0] if tails else ()
    whole = [i for i, tail in zip(module_calls, tails, strict=True) if tail[: len(usual)] == usual]
    others = [name for name in dict.fromkeys(usual) if name != module]
    name = " + ".join([module, *others[:_MOST_NAMED]]) + (" + ..." if len(others) > _MOST_NAMED else "")
    prompts = _prompts([calls[i] for i in whole])
    kinds = {i: PREFILL if is_prompt else name for i, is_prompt in zip(whole, prompts, strict=True)}
    if module == REPLAY:
        kinds |= dict.fromkeys(_prompts_before_replays(calls, module_calls, usual), PREFILL)
    parts, at = [], 0
    while at < len(calls):
        last = at + len(usual) * (at in kinds)
        kind = kinds.get(at, calls[at].module if calls[at].module not in (module, *usual) else "")
        has_tail = at in kinds and kind != PREFILL
        following = calls[last + 1].module if last + 1 < len(calls) else module
        # A step, or a call of its module that is not whole, follows at once.
        is_followed = following == module and kinds.get(last + 1) != PREFILL
        parts.append(Part(at, last, kind, has_tail and is_followed))
        at = last + 1
    return parts


def _module_of_steps(calls: Sequence[Call], wall_ns: Sequence[float]) -> str:
    """Return the module whose calls take the most time: their number times their low median, for the first is slow.

    The time of a call reaches to the next one, so it may be that of other work, such as a file that is written after
    an image. So modules that are called far less often than others do not count.
    """
    times: dict[str, list[float]] = {}
    for call, wall in zip(calls, wall_ns, strict=True):
        if call.is_of_steps and not call.module.endswith(_EVALUATED):
            return call.module
        times.setdefault(call.module, []).append(wall)
    most_calls = max(map(len, times.values()), default=0)
    least = max(min(2, most_calls), _LEAST_OFTEN * most_calls)
    if len(times.get(REPLAY, ())) >= least:
        return REPLAY
    total = {name: len(walls) * statistics.median_low(walls) for name, walls in times.items() if len(walls) >= least}
    most = max(total, key=lambda module: total[module], default="")
    often, long = _AS_OFTEN * len(times.get(most, ())), _AS_LONG * total.get(most, 0.0)
    return next((name for name in total if len(times[name]) >= often and total[name] >= long), most)


def _prompts_before_replays(calls: Sequence[Call], replays: Sequence[int], tail: tuple[str, ...]) -> list[int]:
    """Return the calls with prompts: after one, and the same ``tail`` as after a replay, a replay or a prompt follows.

    There is none where the model is called with tokens before the first replay only, to warm up.
    """
    decoded, prompts = set(replays), list[int]()
    for i in range(len(calls) - 1, -1, -1):
        after = i + 1 + len(tail)
        has_tail = tuple(call.module for call in calls[i + 1 : after]) == tail
        if calls[i].length > 1 and has_tail and (after in decoded or after in prompts[-1:]):
            prompts.append(i)
    return prompts[::-1] if prompts and prompts[0] > replays[0] else []


def _prompts(calls: Sequence[Call]) -> list[bool]:
    """Return which calls of a module have a prompt. Without decoding there is none.

    To decode is to call the model with the last token only, or without a cache with one token more than before.
    """
    if calls and all(call.length and not call.batch for call in calls):
        return _prompts_of_joined([call.length for call in calls])
    grows = [one.batch == two.batch and two.length == one.length + 1 > 2 for one, two in pairwise(calls)]
    # A recording may begin in the middle of a sequence that grows.
    decodes = [call.length == 1 or has_grown for call, has_grown in zip(calls, [any(grows[:1]), *grows], strict=False)]
    is_decoding = 2 * sum(decodes) >= len(calls)
    return [is_decoding and bool(call.length) and not is_decode for call, is_decode in zip(calls, decodes, strict=True)]


def _prompts_of_joined(lengths: Sequence[int]) -> list[bool]:
    """Return which calls have a prompt, where a call has the tokens of all sequences, as in continuous batching.

    To decode is to call with one token of a sequence, so prompts show as a few calls with many more tokens.
    """
    runs = [(length, len(list(same))) for length, same in groupby(lengths)]
    beside = [*(length for length, _ in runs[1:]), runs[-2][0] if len(runs) > 1 else runs[-1][0]]
    prompts: list[bool] = []
    for (length, count), other in zip(runs, beside, strict=True):
        prompts += [count <= _MOST_IN_A_ROW and length > _MORE_TOKENS * other] * count
    return prompts if sum(prompts) <= _MOST_PROMPTS * len(prompts) else [False] * len(prompts)
