"""A manager of the OpenAI Agents SDK that hands control over to two agents, which hand it back, on Chat Completions.

The first transfer names an agent that does not exist, which the SDK reports to the manager.
"""

from __future__ import annotations

from agents import Agent, RunConfig, Runner, function_tool, set_default_openai_api

from teams import common
from teams.openai_agents.team import recorded

MODEL = "scripted-wrong-name"


def manager() -> Agent:
    researcher = Agent(
        name="researcher",
        handoff_description=common.RESEARCHER_DOES,
        instructions=common.RESEARCHER,
        model=MODEL,
        tools=[function_tool(common.web_search)],
    )
    analyst = Agent(
        name="analyst",
        handoff_description=common.ANALYST_DOES,
        instructions=common.ANALYST,
        model=MODEL,
        tools=[function_tool(common.calculator)],
    )
    manager = Agent(name="manager", instructions=common.MANAGER, model=MODEL, handoffs=[researcher, analyst])
    researcher.handoffs.append(manager)
    analyst.handoffs.append(manager)
    return manager


def main() -> None:
    set_default_openai_api("chat_completions")
    with recorded():
        settings = RunConfig(tool_not_found_behavior="return_error_to_model")
        result = Runner.run_sync(manager(), common.question(), run_config=settings)
    print(result.final_output)


if __name__ == "__main__":
    main()
