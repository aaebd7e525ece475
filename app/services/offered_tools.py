"""The tools that a caller has where no URL names a session or a user: as far as its credential reaches."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.domain.credentials import Credential, Scope
from app.domain.errors import NotOwner, SessionNotFound, ToolNotFound
from app.domain.memory_definitions import MEMORY_TOOLS
from app.domain.recall import CONVERSATION_SEARCH, CROSS_SESSION_SEARCH
from app.domain.sessions import Session
from app.domain.tool_definitions import DEFINITIONS, ToolDefinition
from app.services import memory_tools, recall
from app.services.memories import Memories
from app.services.recall import ToolAnswer
from app.storage import sessions
from app.storage.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What the tools of a caller work on: one session and its owner's memory, all of a user's, or nothing."""

    user_id: str | None = None
    session: Session | None = None
    scopes: frozenset[Scope] = frozenset()


async def reach_of(db: Database, caller: Credential, *, user_id: str | None, session_id: str | None) -> Reach:
    """What a caller reaches, who may name a user or a session beside: that narrows, and never widens.

    Raises NotYours, NotOwner, SessionNotFound.
    """
    if user_id is not None:
        caller.check_owner(user_id)
    wanted = session_id or caller.session_id
    if wanted is None:
        return Reach(user_id=user_id or caller.user_id, scopes=caller.scopes)
    async with db.autocommit() as connection:
        session = await sessions.get(connection, wanted)
    caller.check_session(wanted, session.user_id)
    if caller.session_key not in {None, session.key}:
        raise SessionNotFound(wanted)
    if user_id not in {None, session.user_id}:
        raise NotOwner(wanted, str(user_id))
    return Reach(user_id=session.user_id, session=session, scopes=caller.scopes)


def offered(reach: Reach) -> Sequence[ToolDefinition]:
    """The definitions, none where there is nothing to work on."""
    if reach.user_id is None:
        return []
    search = CROSS_SESSION_SEARCH if reach.session is None else CONVERSATION_SEARCH
    found = [tool for tool in DEFINITIONS if tool.name == search] if "search" in reach.scopes else []
    return [*found, *(MEMORY_TOOLS if "memory" in reach.scopes else ())]


async def call(
    db: Database, memories: Memories, reach: Reach, name: str, arguments: str, *, page_size: int
) -> ToolAnswer:
    """Run one of the tools that are offered on the JSON text of its arguments.

    Raises ToolNotFound for any other, and SessionNotFound when the session is gone by then.
    """
    names = [tool.name for tool in offered(reach)]
    if name not in names or reach.user_id is None:
        raise ToolNotFound(name, names)
    if name == CROSS_SESSION_SEARCH:
        return await recall.cross_session_search(db, reach.user_id, arguments, page_size=page_size)
    if reach.session is not None and name == CONVERSATION_SEARCH:
        return await recall.conversation_search(db, reach.session, arguments, page_size=page_size)
    return await memory_tools.run(memories, reach.user_id, name, arguments, session=reach.session)
