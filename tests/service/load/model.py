"""The model under load: holds every prompt to the rules, and answers with text, calls, errors and broken streams."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.prompt_rules import faults_of_prompt, rendered
from tests.service.load.sessions import Session
from tests.service.scripted_model import SEARCH, Line, as_call, is_quote, now, words_of
from tests.upstream import Answer, Call

LOOK_UP = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
_TEXT = "and so on and on and on and on"
_NO_WAIT = {"Retry-After": "0"}
_KINDS = {
    "text": 60, "slow": 12, "call": 24, "search": 6, "view": 6,
    "busy": 3, "error": 2, "refusal": 2, "dies": 3, "event": 2, "nonsense": 1,
}  # fmt: skip


@dataclass(eq=False)
class Attempt:
    """A chat request on its way: its new lines, and the newest question."""

    name: str
    session: Session
    new: list[Line]
    question: str
    began: float = field(default_factory=now)


class Model:
    """Called by the scripted upstream's threads."""

    def __init__(self, seed: int) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.prompts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._chance = Random(seed)

    def __call__(self, request: dict[str, Any]) -> Answer:
        attempt = self.attempts[request["user"]]
        if found := [*_faults_of(request, attempt)]:
            self.faults.append("\n".join([f"The prompt of {attempt.name}:", *found, rendered(request)]))
        kind = self._kind(request)
        self.prompts[kind] += 1
        return self._answer(kind, attempt.session)

    def _kind(self, request: dict[str, Any]) -> str:
        kind = self._chance.choices([*_KINDS], weights=[*_KINDS.values()])[0]
        tool = {"call": "look_up", "search": SEARCH, "view": "MemoryView"}.get(kind)
        tools = {tool["function"]["name"] for tool in request.get("tools") or []}
        may_call = request.get("tool_choice") != "none" and request["messages"][-1]["role"] != "tool"
        return kind if tool is None or (tool in tools and may_call) else "text"

    def _answer(self, kind: str, session: Session) -> Answer:
        chance = self._chance
        match kind:
            case "busy":
                return Answer(status=429, headers=_NO_WAIT)
            case "error":
                return Answer(status=500, headers=_NO_WAIT)
            case "refusal":
                return Answer(status=400)
            case "nonsense":
                return Answer(body=b"{}")
            case "call" | "search" | "view":
                return _calls(session, kind)
            case "dies":
                return Answer(_says(session), dies_after=chance.randint(0, 4))
            case "event":
                return Answer(_says(session), error_after=chance.randint(1, 4))
            case "slow":
                return Answer(_says(session), delay=0.3, chunk_delay=0.2)
        return Answer(_says(session), pieces=chance.randint(3, 12), delay=chance.random() / 10)


def _says(session: Session) -> str:
    text: str = session.says("assistant", _TEXT).message["content"]
    return text


def _calls(session: Session, kind: str) -> Answer:
    call: Call = {
        "call": ("look_up", json.dumps({"place": 1})),
        "search": (SEARCH, json.dumps({"innerThought": "Hm.", "query": "and so on"})),
        "view": ("MemoryView", json.dumps({"path": ""})),
    }[kind]
    line = session.says("assistant", _TEXT)
    identified = (f"call-{line.word}", *call)
    line.message["tool_calls"] = [as_call(*identified)]
    return Answer(line.message["content"], calls=[identified])


def _faults_of(request: dict[str, Any], attempt: Attempt) -> Iterator[str]:
    yield from faults_of_prompt(request)
    yield from attempt.session.faults_of_words(request["messages"], attempt.began)
    said = [message for message in request["messages"] if not is_quote(message)]
    held = {word for message in said for word in words_of(message)}
    yield from (f"The new {line.word} is missing." for line in attempt.new if line.word not in held)
    questions = [words_of(message) for message in said if message["role"] == "user"]
    if not attempt.session.is_shared and attempt.question not in questions[-1]:
        yield f"The newest question is {attempt.question}, the last one here {questions[-1]}."
