"""The tools that the service runs itself in a chat: which there are, and what a model's call of one comes to."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from app.domain.errors import DomainError, Fault, InvalidInput
from app.domain.memory_definitions import MEMORY_TOOLS
from app.domain.messages import tool_calls_of
from app.domain.recall import CONVERSATION_SEARCH
from app.domain.sessions import Session
from app.domain.tool_definitions import DEFINITIONS, ToolDefinition, render
from app.services import memory_tools, recall
from app.services.memories import Memories

log = structlog.get_logger()

FAILED = "Error: this tool does not work at the moment. Go on without it, or try again later."


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTool:
    """A tool, and what runs it on the arguments that a model wrote."""

    definition: ToolDefinition
    run: Callable[[str], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTools:
    """The tools that are added to one request."""

    tools: Mapping[str, ServiceTool]

    def __bool__(self) -> bool:
        return bool(self.tools)

    def definitions(self) -> list[dict[str, Any]]:
        return render([tool.definition for tool in self.tools.values()], "openai")

    def places_of(self, message: Mapping[str, Any]) -> list[int]:
        """Which of a message's calls are for the service."""
        return [place for place, call in enumerate(tool_calls_of(message)) if call.name in self.tools]

    async def run(self, message: Mapping[str, Any], places: Sequence[int]) -> list[dict[str, Any]]:
        """The results of the calls at these places, as messages."""
        calls = tool_calls_of(message)
        return [
            {
                "role": "tool",
                "tool_call_id": calls[place].id,
                "content": await _answer(self.tools[calls[place].name], calls[place].arguments),
            }
            for place in places
        ]


def can_carry_tools(body: Mapping[str, Any]) -> bool:
    """Whether the model may call any: not with the fields of before `tools`, which do not mix with it."""
    return body.get("tool_choice") != "none" and all(body.get(old) is None for old in ("functions", "function_call"))


def added_to(body: Mapping[str, Any], *, recall: bool, memory: bool) -> list[ToolDefinition]:
    """What a request gets: nothing that its own tools have a name of, and nothing when it wants no calls.

    Raises InvalidInput for a request that cannot have any.
    """
    if not can_carry_tools(body):
        return []
    taken = names_of(body.get("tools"))
    searches = [tool for tool in DEFINITIONS if tool.name == CONVERSATION_SEARCH]
    offered = [*(searches if recall else ()), *(MEMORY_TOOLS if memory else ())]
    added = [tool for tool in offered if tool.name not in taken]
    if added and body.get("n") not in {None, 1}:
        raise InvalidInput(Fault(("body", "n"), "With tools that the service runs, n is 1: one answer goes on."))
    return added


def tools_for(
    memories: Memories, session: Session, store: str, added: Sequence[ToolDefinition], *, page_size: int
) -> ServiceTools:
    """The tools at work on one session and one memory store."""

    async def search(arguments: str) -> str:
        answer = await recall.conversation_search(memories.db, session, arguments, page_size=page_size)
        return answer.content

    def runner(name: str) -> Callable[[str], Awaitable[str]]:
        async def run(arguments: str) -> str:
            answer = await memory_tools.run(memories, store, name, arguments, session=session)
            return answer.content

        return search if name == CONVERSATION_SEARCH else run

    return ServiceTools(tools={tool.name: ServiceTool(definition=tool, run=runner(tool.name)) for tool in added})


def names_of(tools: Any) -> set[str]:
    """The names of the tools of a request, in whatever shape its provider takes them."""
    shapes = [shape for tool in tools or () if isinstance(tool, dict) for shape in (tool, *tool.values())]
    named = [shape["name"] for shape in shapes if isinstance(shape, dict) and "name" in shape]
    return {name for name in named if isinstance(name, str)}


def unforced(choice: Any) -> Any:
    """A `tool_choice` once it was followed: forced again, a call would be made for ever. What it leaves out, it does
    still.
    """
    if choice is None:
        return None
    if not isinstance(choice, dict) or not isinstance(some := choice.get("allowed_tools"), dict):
        return "auto"
    return {**choice, "allowed_tools": {**some, "mode": "auto"}}


async def _answer(tool: ServiceTool, arguments: str) -> str:
    try:
        return await tool.run(arguments)
    except DomainError as error:
        log.warning("service_tool_failed", tool=tool.definition.name, reason=type(error).__name__)
        return FAILED
