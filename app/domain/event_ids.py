"""Ids that are the same whenever the same thing is said again: what makes a retried chat a replay."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from app.domain import json_values
from app.domain.messages import type_of


def fingerprint(session_key: int, idempotency_key: str | None) -> str:
    """What sets apart equal messages of different sessions, and of runs with keys of their own."""
    return f"{session_key}" if idempotency_key is None else f"{session_key}/{idempotency_key}"


def of_message(message: Mapping[str, Any], said_in: str) -> str:
    """`<type>-<sha256>` over the message and the fingerprint that it was said in: equal texts collide by design."""
    return f"{type_of(message)}-{_sha256(json_values.canonical([said_in, message]))}"


def of_reply(answered: Sequence[str], attempt: int) -> str:
    """The id of a reply by the ids that it answers, never by its text, which is not known when headers go out."""
    return f"assistant-{_sha256(json_values.canonical([list(answered), attempt]))}"


def of_part(event_id: str, kind: str, place: int) -> str:
    """The id of one of several events that are stored on the way to a reply."""
    return f"{kind}-{_sha256(json_values.canonical([event_id, kind, place]))}"


def of_request(messages: Sequence[Mapping[str, Any]]) -> str:
    """A hash of a request's new messages."""
    return _sha256(json_values.canonical(list(messages)))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
