"""Frameworks that speak Chat Completions hold a whole conversation with a tool call against a real server."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from coa.models.base import Context
from coa.runtime import RunConfig
from support.served import AGENT, served

HEIGHTS = {"Vell": "300 m", "Orm": "250 m"}
QUESTION = "How tall is the Vell tower?"


def asks_client(context: Context) -> str:
    """Calls the client's function `height` once, then answers with its result."""
    if (found := re.search(r"<observation>(.*?)</observation>", context.text, re.DOTALL)) is not None:
        return f"<think>The client says so.</think>\n<answer>It is {found.group(1).strip()} tall.</answer>"
    place = re.findall(r"the (\w+) tower", context.messages[-1].content)[-1]
    return f'<think>I ask the client.</think>\n<height>\n```json\n{{"place": "{place}"}}\n```\n</height>'


def height(place: str) -> str:
    """Height of a tower.

    Args:
        place: Where the tower stands.
    """
    return HEIGHTS[place]


def test_langchain_calls_its_tool_and_asks_again() -> None:
    langchain = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
    from langchain_core.tools import tool

    lookup = tool(height)
    with served(asks_client) as server:
        chat = langchain.ChatOpenAI(
            model=AGENT, base_url=f"{server.url}/v1", api_key="none", max_retries=0, stream_usage=True
        ).bind_tools([lookup])
        messages: list[Any] = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
        for place in ("Vell", "Orm"):
            called = chat.invoke(messages)
            assert [(one["name"], one["args"]) for one in called.tool_calls] == [("height", {"place": place})]
            result = lookup.invoke(called.tool_calls[0])
            assert isinstance(result, ToolMessage)
            messages += [called, result]
            streamed = None
            for chunk in chat.stream(messages):
                streamed = chunk if streamed is None else streamed + chunk
            assert streamed is not None and streamed.content == f"It is {HEIGHTS[place]} tall."
            assert streamed.usage_metadata["output_tokens"] > 0
            messages += [streamed, HumanMessage("And the Orm tower?")]


def test_openai_agents_run_their_loop_over_chat_completions() -> None:
    agents = pytest.importorskip("agents")

    with served(asks_client) as server:

        async def work() -> list[str]:
            async with server.async_client as client:
                model = agents.OpenAIChatCompletionsModel(model=AGENT, openai_client=client)
                agent = agents.Agent(
                    name="Surveyor", instructions="Be brief.", tools=[agents.function_tool(height)], model=model
                )
                config = agents.RunConfig(tracing_disabled=True)
                first = await agents.Runner.run(agent, QUESTION, run_config=config)
                more = [*first.to_input_list(), {"role": "user", "content": "And the Orm tower?"}]
                second = agents.Runner.run_streamed(agent, more, run_config=config)
                async for _ in second.stream_events():
                    pass
                return [first.final_output, second.final_output]

        assert asyncio.run(work()) == ["It is 300 m tall.", "It is 250 m tall."]


def _smolagents_model(url: str) -> Any:
    from smolagents import OpenAIServerModel

    return OpenAIServerModel(
        AGENT, api_base=f"{url}/v1", api_key="none", client_kwargs={"max_retries": 0}, tool_choice="auto"
    )


def test_smolagents_tool_calling_agent_calls_its_tools() -> None:
    smolagents = pytest.importorskip("smolagents")

    def script(context: Context) -> str:
        """smolagents writes a tool's result into a user message."""
        last = context.messages[-1].content
        if (found := re.search(r"Observation:\n(.*)", last)) is not None:
            result = f'{{"answer": "It is {found.group(1)} tall."}}'
            return f"<think>Done.</think>\n<final_answer>\n```json\n{result}\n```\n</final_answer>"
        return asks_client(context)

    with served(script) as server:
        agent = smolagents.ToolCallingAgent(
            tools=[smolagents.tool(height)], model=_smolagents_model(server.url), verbosity_level=0, max_steps=4
        )
        assert agent.run(QUESTION) == "It is 300 m tall."
        assert [step.error for step in agent.memory.steps if hasattr(step, "error")] == [None, None]


def test_smolagents_code_agent_gets_programs_that_end_at_its_stop_strings() -> None:
    smolagents = pytest.importorskip("smolagents")
    program = "<code>\nfinal_answer(height('Vell'))\n</code> Calling tools: forged"
    script = f"<think>One program.</think>\n<answer>Thought: I call the tool.\n{program}</answer>"
    config = {"run": RunConfig(model="http://127.0.0.1:9", profile="web")}  # `code` is no agent of this profile
    with served(lambda context: script, config=config) as server:
        agent = smolagents.CodeAgent(
            tools=[smolagents.tool(height)], model=_smolagents_model(server.url), verbosity_level=0, max_steps=2
        )
        assert agent.run(QUESTION) == "300 m"
        assert "forged" not in str(agent.memory.steps[-1].model_output)
