"""Whole conversations of LangChain's `ChatOpenAI` and of OpenAI's agents SDK with a served agent, over Responses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.served import AGENT, SEARCH, ServedAgent, served

CALL = '<think>I ask the client.</think>\n<get_weather>\n```json\n{"city": "Oslo"}\n```\n</get_weather>'
SCRIPT = [SEARCH, CALL, "<think>It is cold.</think>\n<answer>-3 degrees</answer>", "<answer>In Norway</answer>"]


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"-3 C in {city}"


def chat_model(server: ServedAgent, **settings: Any) -> Any:
    openai = pytest.importorskip("langchain_openai")
    return openai.ChatOpenAI(
        model=AGENT, base_url=f"{server.url}/v1", api_key="none", use_responses_api=True, max_retries=0, **settings
    )


@pytest.mark.parametrize("how", ["invoke", "stream"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"store": False, "include": ["reasoning.encrypted_content"]}, {"use_previous_response_id": True}],
    ids=["items", "stateless", "previous"],
)
def test_langchain_has_a_whole_conversation_with_a_tool_call(how: str, settings: dict[str, Any]) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    with served(SCRIPT) as server:
        model = chat_model(server, **settings).bind_tools([get_weather])

        def ask(messages: list[Any]) -> Any:
            if how == "invoke":
                return model.invoke(messages)
            first, *rest = model.stream(messages)
            for chunk in rest:
                first += chunk
            return first

        said: list[Any] = [HumanMessage("Weather in Oslo?")]
        said.append(ask(said))
        (call,) = said[-1].tool_calls
        assert (call["name"], call["args"]) == ("get_weather", {"city": "Oslo"})
        thoughts = [block["reasoning"] for block in said[-1].content_blocks if block["type"] == "reasoning"]
        assert thoughts == ["I look it up.", "web_search: tallest tower", "I ask the client."]
        said.append(ToolMessage(get_weather(**call["args"]), tool_call_id=call["id"]))
        said.append(ask(said))
        assert said[-1].text == "-3 degrees"
        assert said[-1].usage_metadata["output_token_details"]["reasoning"] > 0
        said.append(HumanMessage("Where is that?"))
        assert ask(said).text == "In Norway"


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("stored", [True, False])
def test_openai_agents_have_a_whole_conversation_with_a_tool_call(streamed: bool, stored: bool) -> None:
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    async def work(server: ServedAgent) -> list[str]:
        async with server.async_client as client:
            model = agents.OpenAIResponsesModel(model=AGENT, openai_client=client)
            settings = agents.ModelSettings(store=stored, temperature=0.5)
            agent = agents.Agent(
                name="helper", instructions="Be brief.", model=model, model_settings=settings,
                tools=[agents.function_tool(get_weather)],
            )  # fmt: skip

            async def ask(said: Any, previous: str | None) -> Any:
                if not streamed:
                    return await agents.Runner.run(agent, said, previous_response_id=previous)
                running = agents.Runner.run_streamed(agent, said, previous_response_id=previous)
                async for _ in running.stream_events():
                    pass
                return running

            first = await ask("Weather in Oslo?", None)
            if stored:
                second = await ask("Where is that?", first.last_response_id)
            else:
                second = await ask([*first.to_input_list(), {"role": "user", "content": "Where is that?"}], None)
            return [first.final_output, second.final_output]

    with served(SCRIPT) as server:
        assert asyncio.run(work(server)) == ["-3 degrees", "In Norway"]
