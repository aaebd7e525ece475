"""Turnkeeper as the adapters beside this file use it: events of a session with a framework's own form inside.

An event is a message in OpenAI chat format, which search, prompts and other clients read; its metadata hold what the
framework had, word for word. Copy this file along with an adapter. It needs httpx alone.

The client blocks and may be shared by threads. Asynchronous adapters call it with `asyncio.to_thread`, which works in
any event loop, also in those that a framework starts for a single call.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Self
from urllib.parse import quote
from uuid import uuid4

import httpx

Message = dict[str, Any]
Event = dict[str, Any]
Entry = tuple[Message, list[Any]]

# Stands for what a framework keeps and nobody said: prompts leave out an assistant message that says nothing.
SILENT: Message = {"role": "assistant", "content": None}
_ATTEMPTS = 3
_LONGEST_WAIT = 10
_BUSY = frozenset({httpx.codes.TOO_MANY_REQUESTS, httpx.codes.SERVICE_UNAVAILABLE})
_MAX_BATCH = 1000


class TurnkeeperError(Exception):
    """What the service refuses, in its own sentence."""

    def __init__(self, response: httpx.Response) -> None:
        self.status = response.status_code
        try:
            problem = response.json()
            self.type, sentence = str(problem["type"]), str(problem["detail"])
        except (ValueError, KeyError, TypeError):  # Something on the way to the service.
            self.type, sentence = "", f"{response.url} answers {self.status} {response.reason_phrase}."
        super().__init__(sentence)


class Turnkeeper:
    """The service: one for all sessions. `api_key` is a service key, or a token that may read and write them."""

    def __init__(self, base_url: str = "http://127.0.0.1:8088", api_key: str | None = None) -> None:
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._http = httpx.Client(base_url=f"{base_url.rstrip('/')}/v1", headers=headers, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def call(self, method: str, *path: str, attempts: int = _ATTEMPTS, **options: Any) -> httpx.Response:
        """The answer, or TurnkeeperError. Asks again where none came: as events have ids, it is a replay."""
        for left in reversed(range(attempts)):
            wait = "1"
            try:
                response = self._http.request(method, "/".join(quote(part, safe="") for part in path), **options)
            except httpx.TransportError:
                if not left:
                    raise
            else:
                if not left or response.status_code not in _BUSY:
                    break
                wait = response.headers.get("Retry-After", wait)
            time.sleep(min(int(wait), _LONGEST_WAIT) if wait.isdigit() else 1)
        if response.is_error:
            raise TurnkeeperError(response)
        return response

    def find(self, method: str, *path: str, **options: Any) -> httpx.Response | None:
        """The same; None where there is no such session."""
        try:
            return self.call(method, *path, **options)
        except TurnkeeperError as error:
            if error.type.endswith(":session-not-found"):
                return None
            raise

    def events(self, session_id: str, **event_filter: Any) -> list[Event]:
        """Any number of events in the order of the log; none where there is no session."""
        path, headers = ("sessions", session_id, "events", "query"), {"Accept": "application/x-ndjson"}
        found = self.find("POST", *path, json=event_filter, headers=headers)
        return [json.loads(line) for line in found.text.split("\n") if line] if found else []

    def append(self, session_id: str, user_id: str, events: Sequence[Event]) -> None:
        """In the order given. The session begins with its first event; another user's is refused."""
        for start in range(0, len(events), _MAX_BATCH):
            body = {"user_id": user_id, "events": events[start : start + _MAX_BATCH]}
            self.call("POST", "sessions", session_id, "events", json=body)


def event_of(event_id: str, message: Message, originals: list[Any], framework: str) -> Event:
    """An event to append. The originals are JSON in a string, which holds what metadata may not: NUL characters."""
    return {"id": event_id, "message": message, "metadata": {framework: json.dumps(originals)}}


def originals_of(event: Event, framework: str, convert: Callable[[Message, str], list[Any]]) -> list[Any]:
    """What the framework had; `convert` makes it of the message and its text where others wrote the event."""
    kept = event["metadata"].get(framework)
    return convert(event["message"], event["text"] or "") if kept is None else list(json.loads(kept))


class SessionLog:
    """One session, for a framework whose messages need not have ids."""

    def __init__(self, service: Turnkeeper, session_id: str, user_id: str, framework: str) -> None:
        self.service, self.session_id, self.user_id, self.framework = service, session_id, user_id, framework
        self._begin()

    def active(self, **event_filter: Any) -> list[Event]:
        """What compactions left: the newest turns, perhaps behind a summary."""
        return self.service.events(self.session_id, exclude_archived=True, **event_filter)

    def add(self, entries: Sequence[Entry], ids: Sequence[str] | None = None) -> None:
        """Messages, each with what the framework had. Called again after an error, it writes nothing twice."""
        if not self._appends:
            session = {"user_id": self.user_id, "allow_system_messages": True}
            self.service.call("PUT", "sessions", self.session_id, json=session)
        names = ids or [self._id(place, entry) for place, entry in enumerate(entries)]
        events = [event_of(name, *entry, self.framework) for name, entry in zip(names, entries, strict=True)]
        self.service.append(self.session_id, self.user_id, events)
        self._appends += 1

    def clear(self) -> None:
        """Deletes the session with its log. For a fresh start that keeps the old words searchable, take a new id."""
        self.service.find("DELETE", "sessions", self.session_id)
        self._begin()

    def _begin(self) -> None:
        self._series, self._appends = uuid4().hex, 0

    def _id(self, place: int, entry: Entry) -> str:
        # Changes with the words and with each append that was acknowledged: the same words said again are new.
        said = json.dumps([self._series, self._appends, place, entry], sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()
