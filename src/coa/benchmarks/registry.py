"""Benchmarks as declarations: where the data come from, how they are run, scored and reported.

To add a benchmark, pass a `Benchmark` to `register`, or declare it in a package under the entry point group
`coa.benchmarks`, where the command line finds it. Its data may be in files, on a hub, or come from a function. No data
are shipped, and none are copied: files stay where the user or the hub's library put them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Final

from coa.benchmarks.row_shapes import RowReader, as_is, browsecomp, contest, livecodebench, without_files, without_image
from coa.errors import EvaluationError
from coa.importing import load_entry_point
from coa.trajectory import Task

log = logging.getLogger(__name__)
GROUP: Final = "coa.benchmarks"
"""Entry points of this group are `Benchmark` objects."""


@dataclass(frozen=True, slots=True)
class Hub:
    """A data set on a hub."""

    id: str
    files: tuple[str, ...]
    """Patterns of paths in the data set; the first one that matches a file decides."""
    split: str = "test"
    gated: bool = False
    """Whether users must log in and accept terms, which usually forbid to publish the rows again."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """How the paper ran a benchmark, which is the default here. The profile limits the number of steps."""

    samples: int = 1
    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int = 20


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    about: str
    size: int | None
    """Number of tasks in the published set; None if it depends on the user's file."""
    profile: str
    scorer: str
    metric: str = "pass@1"
    columns: str = "question, answer"
    """Names of the columns, for users who look for the file."""
    hub: Hub | None = None
    url: str | None = None
    """Address of a single file that is not on a hub."""
    aliases: tuple[str, ...] = ()
    """Other names of its file; capitals and separators do not matter."""
    read: RowReader = as_is
    groups: tuple[str, ...] = ()
    """Keys of a task's meta by which results are broken down."""
    protocol: Protocol = field(default_factory=Protocol)
    note: str = ""
    """What a reader of the numbers must know about the set."""
    tasks: Callable[[], Iterable[Task]] | None = None
    """Makes the tasks, for data that a program generates; no file is searched for then."""
    world: str | None = None
    """The offline world that the questions are about, whose tools are used."""


_AVERAGE: Final = Protocol(samples=16)
_FLASHRAG: Final = "RUC-NLPIR/FlashRAG_datasets"
_QA_COLUMNS: Final = "question, answer or golden_answers (a list), perhaps id and data_source"
_AFM: Final = "the paper's own rows (parquet with reward_model and extra_info) are read as they are"


def _qa(name: str, about: str, size: int, folder: str, split: str, *aliases: str) -> Benchmark:
    hub = Hub(_FLASHRAG, (f"{folder}/{split}.jsonl",), split)
    groups = ("type", "hops", "level")
    return Benchmark(
        name, about, size, "mhqa", "exact", columns=_QA_COLUMNS, hub=hub, aliases=(folder, *aliases), groups=groups
    )


def _math(name: str, about: str, size: int, hub: Hub, *aliases: str, samples: int = 1, note: str = "") -> Benchmark:
    protocol = _AVERAGE if samples == _AVERAGE.samples else Protocol(samples)
    return Benchmark(
        name, about, size, "math", "math",
        metric=f"avg@{samples}" if samples > 1 else "pass@1",
        columns=f"problem or question, answer; {_AFM}",
        hub=hub, aliases=aliases, groups=("subject", "level", "subfield", "difficulty"), protocol=protocol, note=note,
    )  # fmt: skip


def _livecodebench(version: str, size: int, file: str, note: str = "") -> Benchmark:
    return Benchmark(
        f"livecodebench-{version}", "programming contest problems judged by their tests", size, "code", "code",
        columns=f"question_content, public_test_cases, private_test_cases; {_AFM}",
        hub=Hub("livecodebench/code_generation_lite", (file,)), aliases=(f"lcb{version}",), read=livecodebench,
        groups=("difficulty", "platform"), note=note,
    )  # fmt: skip


def _atlas() -> Iterable[Task]:
    from coa.worlds.atlas import Atlas
    from coa.worlds.atlas.entities import Split

    return Atlas().tasks(Split.TEST)


_SHIPPED: Final = (
    Benchmark(
        "atlas", "questions about an invented web that is made here, with one to three hops and arithmetic", 240,
        "atlas", "exact", columns="made by coa world build", groups=("family", "wording"), tasks=_atlas, world="atlas",
        note="no model can know the answers; nothing is downloaded",
    ),
    Benchmark(
        "gaia", "questions for assistants with tools, in three levels", 103, "web", "judge",
        columns="Question, Final answer, Level, file_name; or question, answer, Level",
        hub=Hub("gaia-benchmark/GAIA", ("2023/validation/metadata.parquet", "2023/validation/metadata.jsonl"),
                "validation", gated=True),
        aliases=("gaia103", "gaiatext103", "gaiadev", "gaiadev103", "gaiavalidation"), read=without_files,
        groups=("Level", "level"),
        note="the paper's 103 text-only tasks are a list of ids of the 165 validation rows; from the hub, all rows "
        "without a file are taken, which are more",
    ),
    Benchmark(
        "browsecomp", "facts that are hard to find and easy to check", 1266, "web", "judge",
        columns="problem, answer, problem_topic, canary (encrypted, as published); or question, answer, topic",
        url="https://openaipublic.blob.core.windows.net/simple-evals/browse_comp_test_set.csv",
        aliases=("browsecomptestset",), read=browsecomp, groups=("topic", "problem_topic"),
        note="stays encrypted on the disk and is read with the canary of each row",
    ),
    Benchmark(
        "hle", "Humanity's Last Exam, text-only", 500, "web", "judge",
        columns="id, question, answer, answer_type, raw_subject, category, image",
        hub=Hub("cais/hle", ("data/test-*.parquet",), gated=True), aliases=("hle500", "hletest", "humanityslastexam"),
        read=without_image, groups=("category", "answer_type"),
        note="the paper's 500 are a sample of the rows without an image; from the hub, all of those are taken",
    ),
    Benchmark(
        "webwalkerqa", "questions answered by walking through a web site", 680, "web", "judge",
        columns="question, answer, root_url, info",
        hub=Hub("callanwu/WebWalkerQA", ("data/main-*.parquet", "*main*"), "main"),
        aliases=("webwalker", "webwalkermain"), groups=("type", "difficulty_level", "domain", "lang"),
    ),
    _qa("nq", "Natural Questions", 3_610, "nq", "test", "naturalquestions", "nqfull"),
    _qa("triviaqa", "TriviaQA", 11_313, "triviaqa", "test"),
    _qa("popqa", "PopQA", 14_267, "popqa", "test"),
    _qa("hotpotqa", "HotpotQA", 7_405, "hotpotqa", "dev"),
    _qa("2wikimultihop", "2WikiMultiHopQA", 12_576, "2wikimultihopqa", "dev", "2wiki"),
    _qa("musique", "MuSiQue", 2_417, "musique", "dev"),
    _qa("bamboogle", "Bamboogle", 125, "bamboogle", "test"),
    _livecodebench("v4", 100, "test4.jsonl", "the hub's file of that release has 101 problems, the paper names 100"),
    _livecodebench("v5", 167, "test5.jsonl"),
    Benchmark(
        "codecontests", "contest problems of the AlphaCode paper", 165, "code", "code",
        columns=f"name, description, public_tests, private_tests, generated_tests; {_AFM}",
        hub=Hub("deepmind/code_contests", ("data/test-*.parquet",)), aliases=("codecontest",), read=contest,
        groups=("difficulty", "source"),
    ),
    _math("aime24", "AIME 2024", 30, Hub("HuggingFaceH4/aime_2024", ("data/train-*.parquet",), "train"), "aime2024",
          samples=16),
    _math("aime25", "AIME 2025", 30, Hub("math-ai/aime25", ("test*", "data/test*")), "aime2025", samples=16),
    _math("math500", "MATH, 500 problems", 500, Hub("HuggingFaceH4/MATH-500", ("test.jsonl",))),
    _math("amc23", "AMC 2023", 40, Hub("math-ai/amc23", ("data/test*", "test*")), "amc2023"),
    _math("olympiadbench", "OlympiadBench, English open-ended mathematics", 674,
          Hub("Hothan/OlympiadBench", ("*OE_TO_maths_en_COMP*",), "OE_TO_maths_en_COMP"), "olympiad",
          note="674 on the hub, 675 in some copies of the set"),
)  # fmt: skip

_REGISTRY: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _SHIPPED}


def register(benchmark: Benchmark) -> None:
    """Make a benchmark known by its name, instead of another one of that name."""
    _REGISTRY[benchmark.name] = benchmark


def benchmarks() -> list[Benchmark]:
    """Ours and those that are registered, then those of installed packages whose name is not taken."""
    found = dict(_REGISTRY)
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        benchmark = load_entry_point(point, what="the benchmark", error=EvaluationError)
        if not isinstance(benchmark, Benchmark):
            raise EvaluationError(f"the benchmark {point.name} of {point.value} is not a Benchmark")
        if found.setdefault(benchmark.name, benchmark) is not benchmark:
            log.warning("the benchmark %s of %s is left out: the name is taken", benchmark.name, point.value)
    return list(found.values())


def plain_name(text: str) -> str:
    """Names without capitals and separators: LiveCodeBench_v5 is livecodebench-v5."""
    return re.sub(r"[^a-z0-9]", "", text.casefold())


def find_benchmark(name: str) -> Benchmark | None:
    return next((found for found in benchmarks() if plain_name(name) in names_of(found)), None)


def benchmark_named(name: str) -> Benchmark:
    found = find_benchmark(name)
    if found is None:
        hint = f"use a file of tasks, or one of {', '.join(known.name for known in benchmarks())} (coa eval list)"
        raise EvaluationError(f"there is no benchmark or file {name!r}", hint=hint)
    return found


def names_of(benchmark: Benchmark) -> set[str]:
    return {plain_name(name) for name in (benchmark.name, *benchmark.aliases)}
