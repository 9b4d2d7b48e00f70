"""A manager with a researcher and an analyst, built with the OpenAI Agents SDK: python team.py "QUESTION"

It talks to the server at OPENAI_BASE_URL. The instructions and the order of the tools are made for a model of 1.5B
parameters, which asks the same specialist again and again unless each one is offered once.
"""

import sys

from agents import (
    Agent,
    AsyncOpenAI,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from towns import calculator, lookup

set_tracing_disabled(True)
model = OpenAIChatCompletionsModel(model="qwen", openai_client=AsyncOpenAI(api_key="none", timeout=600))
settings = ModelSettings(temperature=0.0, max_tokens=200, tool_choice="required")
reports: set[str] = set()
"""Who has reported so far."""


async def hand_in(answer: int) -> str:
    """Hand in the answer, a number alone."""
    return str(answer)


def reported(name):
    async def report(result):
        reports.add(name)
        return result.final_output

    return report


researcher = Agent(
    name="researcher",
    model=model,
    model_settings=settings,
    tools=[function_tool(lookup)],
    tool_use_behavior="stop_on_first_tool",
    instructions="You are the researcher. Call lookup with the names of the towns in the request, separated by a "
    "comma, such as Arn, Bol.",
)
analyst = Agent(
    name="analyst",
    model=model,
    model_settings=settings,
    tools=[function_tool(calculator)],
    tool_use_behavior="stop_on_first_tool",
    instructions="You are the analyst. Call calculator with the calculation in the request, such as 512 - 100.",
)
manager = Agent(
    name="manager",
    model=model,
    model_settings=settings,
    reset_tool_choice=False,
    tool_use_behavior={"stop_at_tool_names": ["final_answer"]},
    instructions="You are the manager. Work in three steps. 1. Call ask_researcher with the names of both towns, "
    "separated by a comma, such as Arn, Bol. 2. Call ask_analyst with the calculation, written in numbers from the "
    "report. 3. Call final_answer with the result. Examples: How many people live in Arn and Bol together? Arn has "
    "1200 and Bol 3400 inhabitants, so ask_analyst(1200 + 3400). How many metres higher is Arn than Bol? Their "
    "elevations are 800 and 300, so ask_analyst(800 - 300). How many years after Arn was Bol founded? They were "
    "founded in 1200 and in 1450, so ask_analyst(1450 - 1200).",
    tools=[
        researcher.as_tool(
            "ask_researcher",
            "Looks up the inhabitants, founding year and elevation of both towns. Input: the two names, such as Arn, "
            "Bol.",
            custom_output_extractor=reported("researcher"),
            is_enabled=lambda *_: not reports,
        ),
        analyst.as_tool(
            "ask_analyst",
            "Calculates. Input: the calculation in numbers, such as 800 - 300.",
            custom_output_extractor=reported("analyst"),
            is_enabled=lambda *_: reports == {"researcher"},
        ),
        function_tool(hand_in, name_override="final_answer", is_enabled=lambda *_: "analyst" in reports),
    ],
)
print(Runner.run_sync(manager, sys.argv[1], max_turns=8).final_output)
