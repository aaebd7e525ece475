"""What a caller needs for a route: declared at its endpoint, checked in one place, before the body is read.

Which session, user or store it is about stands in the path; what a body names is checked where that is read, by the
same `Credential`.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Request

from app.domain import ids
from app.domain.credentials import Credential, Scope
from app.domain.errors import SessionNotFound
from app.storage import credentials
from app.storage.database import Database

# `service_key`: that alone; `any`: whatever is valid; `nothing`: no credential.
Need = Scope | Literal["service_key", "any", "nothing"] | Callable[[Mapping[str, str]], Scope]
Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])

_ATTRIBUTE = "turnkeeper_need"
_CREATES = "turnkeeper_creates_session"


def requires(need: Need, *, creates_session: bool = False) -> Callable[[Endpoint], Endpoint]:
    """Declares what an endpoint needs; a function finds the scope by the parameters of the path.

    `creates_session`: the session of the path need not exist.
    """

    def declare(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _ATTRIBUTE, need)
        setattr(endpoint, _CREATES, creates_session)
        return endpoint

    return declare


def need_of(endpoint: Callable[..., Any]) -> Need:
    """Raises TypeError for an endpoint that declares nothing."""
    need: Need | None = getattr(endpoint, _ATTRIBUTE, None)
    if need is None:
        raise TypeError(f"{endpoint.__name__} does not say who may call it: put @requires(…) below its route.")
    return need


def creates_session(endpoint: Callable[..., Any]) -> bool:
    return bool(getattr(endpoint, _CREATES))


def sentence_on(need: Need) -> str:
    """For the OpenAPI document."""
    if callable(need):
        return "A token needs the scope `search` or `memory`, as the tool has it."
    return _SENTENCES.get(need, f"A token needs the scope `{need}`.")


_SENTENCES: Mapping[str, str] = {
    "service_key": "Only a service key may do this.",
    "any": "Any credential will do.",
    "nothing": "No credential is needed.",
}


async def check(request: Request, need: Need, db: Database, *, may_create: bool) -> None:
    """Raises what the caller lacks: ScopeMissing, NotYours, ServiceKeyNeeded, or SessionNotFound."""
    if need == "nothing":
        return
    caller, path = caller_of(request), request.path_params
    _check_scope(caller, need, path)
    if "user_id" in path:
        caller.check_all_of_user(path["user_id"])
    if "store" in path:
        caller.check_store(path["store"])
    if "session_id" in path:
        await check_session(db, caller, path["session_id"], may_create=may_create)


async def check_session(db: Database, caller: Credential, session_id: str, *, may_create: bool) -> None:
    """Whether a session is the caller's, or may become it. Raises SessionNotFound.

    Where none is created, one that is not there is refused here as one of another user's is: by what the endpoint
    says of the rest of a request, a token would tell the two apart.
    """
    if caller.is_service_key or ids.fault_of_id(session_id):  # What is no id the endpoint refuses.
        return
    async with db.autocommit() as connection:
        found = await credentials.find_session(connection, session_id)
    if found is None and not may_create:
        raise SessionNotFound(session_id)
    caller.check_session(session_id, None if found is None else found[1])


def caller_of(request: Request) -> Credential:
    caller: Credential = request.scope["state"]["credential"]
    return caller


async def _caller(request: Request) -> Credential:
    return caller_of(request)


Caller = Annotated[Credential, Depends(_caller)]


def _check_scope(caller: Credential, need: Need, path: Mapping[str, str]) -> None:
    if callable(need):
        caller.check_scope(need(path))
    elif need == "service_key":
        caller.check_service_key("This is done")
    elif need != "any":
        caller.check_scope(need)  # type: ignore[arg-type]  # mypy does not narrow a union with a callable
