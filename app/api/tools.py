"""The tools that a model calls: their definitions, and endpoints that take a model's arguments as they are.

Whose memory is searched stands in the URL, never among the arguments: a model must not be able to choose.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response

from app.api import schemas
from app.api.access import requires
from app.api.dependencies import COMMON, OwnerId, Services, SessionId, Svc, problems
from app.api.message_schemas import ref
from app.api.wire import JsonResponse, JsonRoute
from app.domain.credentials import Scope
from app.domain.errors import Fault, InvalidInput, ToolNotFound
from app.domain.memory_definitions import ANTHROPIC_MEMORY_TOOL, MEMORY_TOOLS
from app.domain.recall import CONVERSATION_SEARCH, CROSS_SESSION_SEARCH
from app.domain.sessions import Session
from app.domain.tool_definitions import DEFINITIONS, Format, render
from app.services import memory_tools, recall
from app.storage import sessions

router = APIRouter(prefix="/v1", tags=["tools"], route_class=JsonRoute, responses=COMMON)

ToolName = Annotated[str, Path(description="A tool's name.")]
_NOT_IN = {"session": CROSS_SESSION_SEARCH, "user": CONVERSATION_SEARCH}

_ARGUMENTS = {
    "requestBody": {
        "description": "The model's arguments object, exactly as the model produced it.",
        "content": {
            "application/json": {
                "schema": ref("ToolArguments"),
            }
        },
    }
}


def _scope_of_tool(path: Mapping[str, str]) -> Scope:
    return "memory" if path["name"] in memory_tools.TOOLS else "search"


@router.get("/tools", response_model=schemas.ToolDefinitions)
@requires("any")
async def list_tools(
    shape: Annotated[Format, Query(alias="format", description="Whose model requests they go into.")] = "openai",
    scope: Annotated[
        Literal["session", "user"] | None,
        Query(description="Only the tools of one session, or of all of a user's; without: all."),
    ] = None,
    memory: Annotated[
        Literal["six", "single"],
        Query(
            description="The six memory tools, or in their place the single one that Anthropic's API knows, which "
            "is called `memory`: with `format=anthropic` only."
        ),
    ] = "six",
) -> Response:
    """List the tools for models.

    The definitions are ready to be put into a model request. Give the live agent the tools of scope `session`, a
    background agent those of scope `user`.
    """
    single = memory == "single"
    if single and shape != "anthropic":
        raise InvalidInput(
            Fault(("query", "memory"), "Only format=anthropic has the single tool: send that, or six.")
        )
    tools = [*DEFINITIONS, *(() if single else MEMORY_TOOLS)]
    chosen = [tool for tool in tools if scope is None or tool.name != _NOT_IN[scope]]
    return JsonResponse({"tools": [*render(chosen, shape), *([ANTHROPIC_MEMORY_TOOL] if single else [])]})


@router.post(
    "/sessions/{session_id}/tools/{name}",
    response_model=schemas.ToolAnswer,
    responses=problems(404),
    openapi_extra=_ARGUMENTS,
)
@requires(_scope_of_tool)
async def call_session_tool(session_id: SessionId, name: ToolName, request: Request, svc: Svc) -> Response:
    """Run a tool on a session.

    It searches the session, or works on the memory of its owner. Wrong arguments are a sentence, with 200. There
    are `conversation_search`, the six memory tools, and `memory` for the calls of Anthropic's own memory tool.
    """
    if name in memory_tools.TOOLS:
        async with svc.db.autocommit() as connection:
            session = await sessions.get(connection, session_id)
        return await _call_memory_tool(svc, session.user_id, name, request, session)
    if name != CONVERSATION_SEARCH:
        raise ToolNotFound(name, [CONVERSATION_SEARCH, *memory_tools.TOOLS])
    answer = await recall.conversation_search(
        svc.db, session_id, await request.body(), page_size=svc.settings.recall_page_size
    )
    return JsonResponse({"content": answer.content, "is_error": answer.is_error})


@router.post(
    "/users/{user_id}/tools/{name}",
    response_model=schemas.ToolAnswer,
    responses=problems(404),
    openapi_extra=_ARGUMENTS,
)
@requires(_scope_of_tool)
async def call_user_tool(user_id: OwnerId, name: ToolName, request: Request, svc: Svc) -> Response:
    """Run a tool for a user.

    It searches all sessions of the user, or works on the user's memory. Wrong arguments are a sentence, with 200.
    There are `cross_session_search`, the six memory tools, and `memory` for the calls of Anthropic's own memory
    tool.
    """
    if name in memory_tools.TOOLS:
        return await _call_memory_tool(svc, user_id, name, request, None)
    if name != CROSS_SESSION_SEARCH:
        raise ToolNotFound(name, [CROSS_SESSION_SEARCH, *memory_tools.TOOLS])
    answer = await recall.cross_session_search(
        svc.db, user_id, await request.body(), page_size=svc.settings.recall_page_size
    )
    return JsonResponse({"content": answer.content, "is_error": answer.is_error})


async def _call_memory_tool(
    svc: Services, store: str, name: str, request: Request, session: Session | None
) -> Response:
    answer = await memory_tools.run(svc.memories, store, name, await request.body(), session=session)
    return JsonResponse({"content": answer.content, "is_error": answer.is_error})
