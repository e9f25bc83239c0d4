"""Ten questions with known answers, asked of ``profpipe mcp`` by the SDK's own client: calls, tokens, answers.

    python benchmarks/mcp_questions.py

The answers are those of tests/data/reported/expect.json, of the files' own tables, and of the examples' pages. A token
is counted as four characters. Exit code 1: an answer is wrong, took more than three calls, or is too long.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOKENS = 2_000
CALLS = 3

Answer = dict[str, Any]


@dataclass(frozen=True)
class Question:
    """A question, its calls as (tool, arguments), and what reads the answer from the answers of the tools."""

    text: str
    calls: Sequence[tuple[str, dict[str, Any]]]
    read: Callable[[list[Answer]], object]
    expected: object


def value(answer: Answer, end: str) -> Any:
    """Return the value of the finding whose id ends with ``end``."""
    return next(each["value"] for each in answer["findings"] if each["id"].endswith(end))


def sentences(answer: Answer) -> str:
    return " ".join(each.get("sentence", "") for each in [*answer["findings"], *answer["warnings"]])


def rows(answer: Answer, table: str) -> list[list[Any]]:
    return [row for each in answer["content"] if each.get("table") == table for row in each["rows"]]


def _summary(name: str) -> list[tuple[str, dict[str, Any]]]:
    return [("summary", {"result": name})]


LM = "data/nsys-2025.3.1/training/lm_eager.sqlite"
REPORTED = "data/reported"

QUESTIONS = (
    Question("How many kernels did lm_eager launch, and how long did they take (ns)?", _summary(LM),
             lambda found: (found[0]["files"][0]["launches"], found[0]["files"][0]["value"]), (723, 18510868)),
    Question("Which kernel of a step of lm_eager takes the most time, and how often is it launched?",
             [("kernels", {"result": LM})], lambda found: rows(found[0], "top_kernels")[0][::2][:2],
             ["cutlass::Kernel2<cutlass_80_simt_sgemm_256x128_8x4_nn_align1>", 17]),
    Question("How long is a step of last_step.json (ms), and which share of it is compute?",
             _summary(f"{REPORTED}/last_step.json"),
             lambda found: (round(value(found[0], ".time") / 1e6, 1), round(value(found[0], ".step.compute") / 5e7, 3)),
             (50.0, 0.196)),
    Question("How long does each of the merged ranks compute in a step (us)?",
             [("steps", {"result": f"{REPORTED}/merged_ranks.json"})],
             lambda found: {row[0]: row[2] / 1e3 for row in rows(found[0], "ranks")},
             {"0": 500.0, "1": 450.0, "2": 400.0, "3": 350.0}),
    Question("How long is a step of the process with four GPUs (us)?",
             _summary(f"{REPORTED}/one_process_four_gpus.sqlite"),
             lambda found: value(found[0], ".time") / 1e3, 2733.0),
    Question("Are kernels missing in rank_without_kernels, and of which process?",
             _summary(f"{REPORTED}/rank_without_kernels.sqlite"),
             lambda found: "Process 1001 made 144 launches, and 144 of them have no kernel" in sentences(found[0]),
             True),
    Question("How idle is the GPU in a step of graph_deferred?", _summary(f"{REPORTED}/graph_deferred.json"),
             lambda found: "96.0 % of the kernel time" in sentences(found[0])
             and "so idle time is unknown" in sentences(found[0]), True),
    Question("Which kernel became faster from compare_before to compare_after, and by how much (us)?",
             [("compare", {"a": f"{REPORTED}/compare_before/trace.json", "b": f"{REPORTED}/compare_after/trace.json"})],
             lambda found: [(row[0][-10:], row[2], row[-1] / 1e3) for row in
                            rows(found[0], "Kernels and copies of a step") if row[-1]],
             [("d<float>…>", "shrank", -80.0)]),
    Question("Is B of regression_check slower, and did it pass its gate?", _summary("examples/regression_check"),
             lambda found: (found[0]["cases"][0]["verdict"], round(found[0]["cases"][0]["ratio"], 3),
                            found[0]["gate"]["result"]), ("slower", 1.858, "failed")),
    Question("How long do cudnn and fa2 take at seqlen 8192, causal, forward?",
             [("summary", {"result": "examples/attention_scaling"}),
              *(("case", {"result": "examples/attention_scaling", "workload": "lengths",
                          "case": f"dtype=bf16,mode=fwd,causal=true,seqlen=8192,impl={name}"})
                for name in ("sdpa_cudnn", "fa2"))],
             lambda found: [each["content"][0]["sentence"].split(" per call")[0] for each in found[1:]],
             ["1001 us", "1673 us"]),
)  # fmt: skip


async def ask(folders: Sequence[str], calls: Sequence[tuple[str, dict[str, Any]]]) -> list[Any]:
    """Return the results of the calls, from one process of the server."""
    from mcp import ClientSession
    from mcp.client.stdio import StdioServerParameters, stdio_client

    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    words = ["-m", "profpipe", "mcp", *folders]
    server = StdioServerParameters(command=sys.executable, args=words, env=environment, cwd=ROOT)
    async with stdio_client(server) as streams, ClientSession(*streams) as session:
        await session.initialize()
        return [await session.call_tool(tool, arguments) for tool, arguments in calls]


def main() -> int:
    calls = [call for question in QUESTIONS for call in question.calls]
    results = iter(asyncio.run(ask(["tests/data", "examples"], calls)))
    print("| question | calls | tokens | answer |\n| --- | --- | ---: | --- |")
    wrong = False
    for question in QUESTIONS:
        texts = [next(results).content[0].text for _ in question.calls]
        answer = question.read([json.loads(text) for text in texts])
        tokens = [len(text) // 4 + 1 for text in texts]
        is_right = answer == question.expected and len(texts) <= CALLS and max(tokens) < TOKENS
        wrong = wrong or not is_right
        tools = ", ".join(tool for tool, _ in question.calls)
        print(f"| {question.text} | {tools} | {sum(tokens)} | {answer}{'' if is_right else ' WRONG'} |")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
