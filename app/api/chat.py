"""Chat over HTTP: one handler behind two doors, that of OpenAI's SDKs and one with problem documents."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from app.api import id_headers
from app.api.access import caller_of, check_session, requires
from app.api.chat_schemas import ChatBody, MemoryBody, agreed
from app.api.delivery import Delivery
from app.api.dependencies import COMMON, Services, Svc, problems
from app.api.message_schemas import ref
from app.api.wire import JsonRoute
from app.domain import ids
from app.domain.chat import ChatOptions, ChatRequest
from app.domain.credentials import Credential
from app.domain.errors import Fault, InvalidInput, SessionIdMissing
from app.domain.filters import EventFilter

router = APIRouter(prefix="/v1", tags=["chat"], route_class=JsonRoute, responses=COMMON)

_STREAM = {"text/event-stream": {"schema": {"type": "string", "description": "chat.completion.chunk objects."}}}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The upstream's answer, unchanged: a chat.completion, or a stream of its chunks.",
        "content": {"application/json": {"schema": ref("ChatCompletion")}, **_STREAM},
        "headers": {
            "X-Session-Id": {"description": "The session, percent-encoded.", "schema": {"type": "string"}},
            "X-Event-Version": {
                "description": "The session's version once the question was stored.",
                "schema": {"type": "string"},
            },
            "X-Turnkeeper-Events": {
                "description": "Ids of the events that were stored of the request, percent-encoded, comma-separated.",
                "schema": {"type": "string"},
            },
            "X-Turnkeeper-Reply-Event": {
                "description": "The id that the reply is stored under.",
                "schema": {"type": "string"},
            },
            "X-Turnkeeper-Context": {
                "description": "The stored history in the prompt, such as `events=12;tokens=345`.",
                "schema": {"type": "string"},
            },
        },
    },
    **problems(400, 403, 409, 415, 502, 504),
}
_MODELS = {
    "description": "What the upstream lists.",
    "content": {"application/json": {"schema": ref("ModelList")}},
}

SessionHeader = Annotated[
    str | None, Header(alias=id_headers.SESSION_ID, description="The conversation, percent-encoded UTF-8.")
]
UserHeader = Annotated[
    str | None, Header(alias=id_headers.USER_ID, description="Whose it is, percent-encoded UTF-8.")
]
KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        description="Names a run: the same request with the same key is stored once, and answered from the log.",
    ),
]


@router.post("/chat", responses=_ANSWERS, response_class=Response)
@requires("chat")
async def chat(
    body: ChatBody,
    request: Request,
    svc: Svc,
    session: SessionHeader = None,
    user: UserHeader = None,
    key: KeyHeader = None,
) -> Response:
    """Chat with memory.

    This loads, appends and compacts around the upstream LLM. The session's history goes before what is new in the
    request; the question is stored before the upstream is called, the reply before the answer ends. The session
    is created when there is none.
    """
    return await _delivery(body, request, svc, session, user, key)


@router.post("/chat/completions", responses=_ANSWERS, response_class=Response)
@requires("chat")
async def chat_completions(
    body: ChatBody,
    request: Request,
    svc: Svc,
    session: SessionHeader = None,
    user: UserHeader = None,
    key: KeyHeader = None,
) -> Response:
    """Chat with memory, for OpenAI's SDKs.

    The same as `chat`, with errors in OpenAI's shape.
    """
    return await _delivery(body, request, svc, session, user, key)


@router.get("/models", responses={200: _MODELS, **problems(502, 504)}, response_class=Response)
@requires("chat")
async def list_models(svc: Svc) -> Response:
    """List the upstream's models.

    The answer is the upstream's, unchanged.
    """
    answer = await svc.upstream.models()
    return Response(answer.body, headers=answer.headers)


async def _delivery(
    body: ChatBody, request: Request, svc: Services, session: str | None, user: str | None, key: str | None
) -> Response:
    session_id = agreed("session_id", body.session_id, id_headers.decoded(id_headers.SESSION_ID, session))
    user_id = agreed("user_id", body.user_id, id_headers.decoded(id_headers.USER_ID, user))
    caller = caller_of(request)
    session_id = session_id or caller.session_id
    if session_id is None:
        raise SessionIdMissing
    store = None if body.memory is None else body.memory.store
    faults = [*_faults_of_ids(session_id, user_id, store), *body.faults()]
    if faults:
        raise InvalidInput(*faults)
    await check_session(svc.db, caller, session_id, may_create=True)
    if user_id is not None:
        caller.check_owner(user_id)
    defaults = svc.chat_defaults
    with _below("filter"):
        own_filter = EventFilter() if body.filter is None else body.filter.to_filter()
    with _below("memory"):
        options = _options(body, defaults.options, caller)
    chat_request = ChatRequest(
        request_id=request.scope["state"]["request_id"],
        session_id=session_id,
        user_id=user_id or caller.user_id,
        session_key=caller.session_key,
        messages=list(body.messages),
        body=body.for_upstream(),
        event_filter=defaults.event_filter.merge(own_filter),
        options=options,
        idempotency_key=key.strip() or None if key else None,
    )
    return Delivery(svc.chat, chat_request, patience=svc.settings.upstream_idle_timeout_seconds)


def _options(body: ChatBody, defaults: ChatOptions, caller: Credential) -> ChatOptions:
    """What a token does not reach it may not ask for, and does not get by default either."""
    asked = body.memory or MemoryBody()
    if asked.store is not None:
        caller.check_store(asked.store)
    if asked.recall:
        caller.check_scope("search")
    if asked.long_term:
        caller.check_scope("memory")
    options = asked.over(defaults)
    return replace(
        options,
        recall=options.recall and "search" in caller.scopes,
        long_term=options.long_term and "memory" in caller.scopes,
        store=options.store if caller.is_service_key else asked.store,
    )


@contextmanager
def _below(place: str) -> Iterator[None]:
    """Faults are where the request has them."""
    try:
        yield
    except InvalidInput as error:
        faults = (Fault(("body", place, *_relative(fault.loc)), fault.msg) for fault in error.faults)
        raise InvalidInput(*faults) from None


def _relative(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    return loc[1:] if loc[:1] == ("body",) else loc


def _faults_of_ids(session_id: str, user_id: str | None, store: str | None) -> list[Fault]:
    found = {
        ("session_id",): ids.fault_of_id(session_id),
        ("user_id",): None if user_id is None else ids.fault_of_user_id(user_id),
        ("memory", "store"): None if store is None else ids.fault_of_store_id(store),
    }
    return [Fault(("body", *place), fault) for place, fault in found.items() if fault]
