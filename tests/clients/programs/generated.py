"""What a program does with the client that openapi-python-client generates. Type-checked together with the client."""

import io
from typing import Any, TypeVar

from turnkeeper_client import AuthenticatedClient
from turnkeeper_client.api.chat import chat
from turnkeeper_client.api.events import append_events, get_context, list_events
from turnkeeper_client.api.memory import get_memory_archive, get_memory_file, put_memory_archive, put_memory_file
from turnkeeper_client.api.search import search_session
from turnkeeper_client.api.sessions import create_session, get_session
from turnkeeper_client.api.users import export_user
from turnkeeper_client.models import (
    Appended,
    AppendRequest,
    ChatCompletion,
    ChatRequest,
    Context,
    MemoryFile,
    MemoryFileList,
    Problem,
    SearchPage,
    Session,
    SessionCreate,
    SessionEventPage,
    SessionSearch,
    UserMessage,
)
from turnkeeper_client.types import File

Wanted = TypeVar("Wanted")
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "We take PostgreSQL."},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call-1", "type": "function", "function": {"name": "note", "arguments": '{"a":  1}'}, "index": 0}
        ],
    },
    {"role": "tool", "tool_call_id": "call-1", "content": [{"type": "text", "text": "Noted.", "cache": True}]},
    {"role": "assistant", "content": "Noted.", "refusal": None, "reasoning": ["kept", "too"]},
]


def connect(url: str, key: str) -> AuthenticatedClient:
    return AuthenticatedClient(base_url=url, token=key, raise_on_unexpected_status=True)


def is_a(kind: type[Wanted], answer: object) -> Wanted:
    assert isinstance(answer, kind), answer
    return answer


def create(client: AuthenticatedClient, session: str) -> Session:
    body = SessionCreate(id=session, user_id="ada")
    return is_a(Session, create_session.sync(client=client, body=body))


def append(client: AuthenticatedClient, session: str) -> Appended:
    body = AppendRequest.from_dict({"user_id": "ada", "events": [{"message": message} for message in MESSAGES]})
    return is_a(Appended, append_events.sync(session, client=client, body=body))


def window(client: AuthenticatedClient, session: str) -> SessionEventPage:
    return is_a(SessionEventPage, list_events.sync(session, client=client, last_n=2))


def context(client: AuthenticatedClient, session: str) -> Context:
    return is_a(Context, get_context.sync(session, client=client, max_tokens=1_000))


def search(client: AuthenticatedClient, session: str) -> SearchPage:
    body = SessionSearch(query="postgresql")
    return is_a(SearchPage, search_session.sync(session, client=client, body=body))


def ask(client: AuthenticatedClient, session: str) -> ChatCompletion:
    message = UserMessage(role="user", content="What do we take?")
    return is_a(ChatCompletion, chat.sync(client=client, body=ChatRequest(messages=[message]), x_session_id=session))


def remember(client: AuthenticatedClient, store: str, text: str) -> MemoryFile:
    body = File(io.BytesIO(text.encode()))
    return is_a(MemoryFile, put_memory_file.sync(store, client=client, body=body, path="notes/db.md"))


def recollect(client: AuthenticatedClient, store: str) -> str:
    return is_a(str, get_memory_file.sync(store, client=client, path="notes/db.md"))


def move_archive(client: AuthenticatedClient, store: str, to: str) -> MemoryFileList:
    archive = is_a(File, get_memory_archive.sync(store, client=client))
    return is_a(MemoryFileList, put_memory_archive.sync(to, client=client, body=archive))


def export(client: AuthenticatedClient, user: str) -> str:
    return is_a(str, export_user.sync(user, client=client))


def missing(client: AuthenticatedClient, session: str) -> Problem:
    return is_a(Problem, get_session.sync(session, client=client))


def refused(client: AuthenticatedClient, session: str) -> Problem:
    body = SessionSearch(query=" ")
    return is_a(Problem, search_session.sync(session, client=client, body=body))
