"""Recall: the tools that search the log, and what of a long text a model is shown."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.domain.messages import tool_calls_of, type_of
from app.domain.text import fold, search_form

CONVERSATION_SEARCH = "conversation_search"
CROSS_SESSION_SEARCH = "cross_session_search"

# Their results are in the log like every tool result, but are not found again: otherwise they would
# match every later search for the same words, nested and growing.
RECALL_TOOLS = frozenset({CONVERSATION_SEARCH, CROSS_SESSION_SEARCH})

MAX_QUERY_TERMS = 20
SHOWN_LENGTH = 2_000
CUT = "[…]"


def split_query(query: str) -> list[str]:
    """The terms of a comma-separated query, trimmed, blank ones dropped."""
    return [term for part in query.split(",") if (term := part.strip())]


def excerpt(text: str, terms: Sequence[str]) -> str:
    """A text for a model: whole up to 2,000 characters, else the part around the first match."""
    if len(text) <= SHOWN_LENGTH:
        return text
    start = max(0, min(_first_match(text, terms) - SHOWN_LENGTH // 2, len(text) - SHOWN_LENGTH))
    end = start + SHOWN_LENGTH
    return f"{CUT if start else ''}{text[start:end]}{CUT if end < len(text) else ''}"


def answered_calls(batch: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """For each message of a batch, the name of the call that it answers, as far as the batch itself tells."""
    names: list[str | None] = []
    latest: dict[str, str] = {}
    blank: list[str] = []
    for message in batch:
        names.append(None)
        if type_of(message) == "tool":
            call_id = message["tool_call_id"].strip() and message["tool_call_id"]
            names[-1] = latest.get(call_id) if call_id else (blank.pop(0) if blank else None)
        elif calls := tool_calls_of(message):
            latest |= {call.id: call.name for call in calls if call.id.strip()}
            blank = [call.name for call in calls if not call.id.strip()]
    return names


def _first_match(text: str, terms: Sequence[str]) -> int:
    """Where the first match begins, in characters of `text`. Folding may change lengths, hence the search for it."""
    folded = search_form(text)
    places = [place for term in terms if (place := folded.find(fold(term))) >= 0]
    if not places:
        return 0
    if len(folded) == len(text):
        return min(places)
    low, high = 0, len(text)
    while low < high:  # the longest prefix of the text whose folded form still ends before the match
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(search_form(text[:middle])) <= min(places) else (low, middle - 1)
    return low
