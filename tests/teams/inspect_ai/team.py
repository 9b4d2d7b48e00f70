"""A manager of Inspect with a researcher that is called as a tool and an analyst that is handed over to.

The first call of the researcher has wrong arguments, which Inspect reports to the manager. The log is written in both
formats: `.json`, and `.eval`, which is a zip archive.
"""

from __future__ import annotations

from tempfile import TemporaryDirectory

from inspect_ai import Task, eval
from inspect_ai.agent import Agent, as_tool, handoff, react
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, write_eval_log
from inspect_ai.scorer import includes
from inspect_ai.tool import Tool, tool

from teams import common

MODEL = "openai/scripted-wrong-arguments"


@tool
def web_search() -> Tool:
    async def execute(query: str) -> str:
        """Search the web.

        Args:
            query: What to search for.
        """
        return common.web_search(query)

    return execute


@tool
def calculator() -> Tool:
    async def execute(expression: str) -> str:
        """Calculate the value of an arithmetic expression.

        Args:
            expression: The expression, such as 2 + 3.
        """
        return common.calculator(expression)

    return execute


def manager() -> Agent:
    researcher = react(
        name="researcher", description=common.RESEARCHER_DOES, prompt=common.RESEARCHER, tools=[web_search()],
        submit=False,
    )  # fmt: skip
    analyst = react(
        name="analyst", description=common.ANALYST_DOES, prompt=common.ANALYST, tools=[calculator()], submit=False
    )
    return react(name="manager", prompt=common.MANAGER, tools=[as_tool(researcher), handoff(analyst)])


def run() -> EvalLog:
    task = Task(
        dataset=[Sample(input=common.question(), target="674,500", id="towns")], solver=manager(), scorer=includes()
    )
    with TemporaryDirectory() as folder:
        (log,) = eval(
            task, model=MODEL, log_dir=folder, display="none", max_samples=1, log_model_api=False,
            reasoning_summary="auto",
        )  # fmt: skip
        log.eval.revision = None  # it names this repository
        for kind in ("json", "eval"):
            write_eval_log(log, str(common.traces() / f"log.{kind}"), kind)
    return log


if __name__ == "__main__":
    log = run()
    assert log.samples is not None, log.error
    print(log.samples[0].output.completion)
