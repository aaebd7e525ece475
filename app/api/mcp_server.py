"""The Model Context Protocol by its SDK: lists the tools that are reached, and calls them."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import structlog
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
)
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api import mcp_errors, openapi
from app.api.dependencies import Services
from app.api.problems import described
from app.domain import json_values
from app.domain.errors import DomainError, ToolNotFound
from app.domain.memory_prompts import rendered
from app.services import offered_tools
from app.services.offered_tools import Reach

log = structlog.get_logger()

_NO_TOOLS = (
    "There are no tools for this credential: it reaches no user and no session, or lacks the scopes. Send a token "
    "that POST /v1/tokens makes for a user or for a session, with the scope search or memory; or, with a service "
    "key, the header X-User-Id or X-Session-Id."
)
_SEARCH = {
    True: "conversation_search finds what was said in this conversation, also long ago, word for word.",
    False: "cross_session_search finds what was said in any conversation with this user, word for word.",
}

_REACH = "mcp_reach"
_Context = ServerRequestContext[Any, Request]


class McpServer:
    """Servers that differ by what they tell a model about their tools; nothing is kept between requests."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._by_instructions: dict[str, _Running] = {}

    def handler(self, reach: Reach) -> ASGIApp:
        """What answers a request of a caller that reaches this."""

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"][_REACH] = reach
            running = await self._running(self._instructions(reach))
            await running.manager.handle_request(scope, receive, send)

        return handle

    async def close(self) -> None:
        for running in self._by_instructions.values():
            await running.stop()

    async def _running(self, instructions: str) -> "_Running":
        if instructions not in self._by_instructions:
            self._by_instructions[instructions] = _Running(self._manager(instructions))
        running = self._by_instructions[instructions]
        await running.started()
        return running

    def _manager(self, instructions: str) -> StreamableHTTPSessionManager:
        server = Server(
            "turnkeeper",
            version=openapi.VERSION,
            title="Turnkeeper",
            instructions=instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        most = self._services.settings.max_body_bytes
        return StreamableHTTPSessionManager(server, json_response=True, stateless=True, max_request_body_size=most)

    def _instructions(self, reach: Reach) -> str:
        if not offered_tools.offered(reach):
            return _NO_TOOLS
        search = [_SEARCH[reach.session is not None]] if "search" in reach.scopes else []
        memory = [rendered(self._services.memory_prompts.template)] if "memory" in reach.scopes else []
        return "\n\n".join([*search, *memory])

    async def _list_tools(self, context: _Context, _: PaginatedRequestParams | None) -> ListToolsResult:
        tools = offered_tools.offered(_reach(context))
        return ListToolsResult(
            tools=[Tool(name=tool.name, description=tool.description, input_schema=tool.schema) for tool in tools]
        )

    async def _call_tool(self, context: _Context, params: CallToolRequestParams) -> CallToolResult:
        services = self._services
        with _told(context):
            answer = await offered_tools.call(
                services.db,
                services.memories,
                _reach(context),
                params.name,
                json_values.encode(params.arguments or {}),
                page_size=services.settings.recall_page_size,
            )
        return CallToolResult(content=[TextContent(text=answer.content)], is_error=answer.is_error)


class _Running:
    """A session manager within a task of its own: it must end in the task that it began in."""

    def __init__(self, manager: StreamableHTTPSessionManager) -> None:
        self.manager = manager
        self._ready = asyncio.Event()
        self._end = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def started(self) -> None:
        await self._ready.wait()

    async def stop(self) -> None:
        self._end.set()
        await self._task

    async def _run(self) -> None:
        async with self.manager.run():
            self._ready.set()
            await self._end.wait()


def _reach(context: _Context) -> Reach:
    reach: Reach = _scope(context)["state"][_REACH]
    return reach


def _scope(context: _Context) -> Mapping[str, Any]:
    return cast("Request", context.request).scope  # There is one over HTTP.


@contextmanager
def _told(context: _Context) -> Iterator[None]:
    """What a model cannot act on is an error of the protocol, and says nothing of the inside."""
    try:
        yield
    except ToolNotFound as error:
        reason = str(error) if offered_tools.offered(_reach(context)) else _NO_TOOLS
        raise MCPError(mcp_errors.INVALID_PARAMS, reason) from error
    except DomainError as error:
        raise MCPError(mcp_errors.INTERNAL_ERROR, str(error), described(_scope(context), error)) from error
    except Exception as error:
        log.exception("tool_crashed")
        request_id = _scope(context)["state"]["request_id"]
        detail = f"Something unexpected went wrong; the log tells more about request {request_id}."
        raise MCPError(mcp_errors.INTERNAL_ERROR, detail, {"request_id": request_id}) from error
