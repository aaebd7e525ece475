"""Chats without a database: a session that the decisions of the domain are acted upon, and requests in brief."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from app.domain import guards, json_values, prompt
from app.domain.conversation import History, continued
from app.domain.events import Event
from app.domain.message_filters import MessageFilter, SkipEmpty
from app.domain.messages import text_of
from app.domain.prompt import Budget, Prompt
from app.domain.said import Loaded, Request, Said
from app.domain.service_runs import Run
from tests.domain.logs import ROLES, event
from tests.prompt_rules import require_valid

Message = dict[str, Any]
INTERRUPTED = '{"interrupted":true}'
LATE = '{"late":true}'


def messages(line: str) -> list[Message]:
    """`messages("S U1 A1c T1 A1'")`: a request in the notation of the cases; `A1cab` makes the calls a and b."""
    return [_named(name) for name in line.split()]


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def assistant(text: Any, **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **fields}


def call(*ids: str, name: str = "f", arguments: str = "{}", content: str | None = None) -> Message:
    made = [{"id": one, "type": "function", "function": {"name": name, "arguments": arguments}} for one in ids]
    return assistant(content, tool_calls=made)


def result(call_id: str, text: Any = "r") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def brief(sent: Sequence[Any]) -> str:
    """The messages of a prompt by their texts; a call by the ids that it makes."""
    return " ".join(_brief(message) for message in sent)


def new_messages(said: Sequence[Said]) -> list[Any]:
    return [one.message for one in said if one.new]


def _start_of_tail(active: Sequence[Event], starts: Sequence[int], answered_seq: int) -> int:
    """Where the turn of the last complete reply begins."""
    replies = [
        one.seq
        for one in active
        if one.type == "assistant" and not (one.is_interrupted or one.is_late or "run" in one.metadata)
    ]
    anchor = max([answered_seq, *replies])
    return max((start for start in starts if active[start].seq <= anchor), default=0)


class Session:
    """A log, and the cycle of a chat upon it as far as it needs no I/O. Every prompt is checked."""

    def __init__(self, events: Sequence[Event] = (), *, answered: bool = True) -> None:
        self.log = list(events)
        self.answered_seq = self.log[-1].seq if self.log and answered else 0

    def loaded(self, window: Callable[[list[Event]], list[Event]] | None = None) -> Loaded:
        active = [one for one in self.log if not one.archived]
        said = [one for one in active if one.type != "system"]
        chosen = said if window is None else window(said)
        starts = [place for place, one in enumerate(active) if one.type == "user"]
        whole = [one for one in self.log if one.type != "system"]
        return Loaded(
            window=chosen,
            tail=active[_start_of_tail(active, starts, self.answered_seq) :],
            system=next((one for one in reversed(active) if one.type == "system"), None),
            first_seq=whole[0].seq if whole else None,
            answered_seq=self.answered_seq,
        )

    def ask(
        self,
        request: Sequence[Message],
        *,
        accepted: MessageFilter | None = None,
        history: History = "prepend",
        window: Callable[[list[Event]], list[Event]] | None = None,
        budget: Budget | None = None,
    ) -> Prompt:
        """Store what is new and return the prompt. Raises what the guards raise; strays are an AssertionError."""
        accepted = SkipEmpty() if accepted is None else accepted
        loaded = self.loaded(window)
        parts = Request.of(request)
        conversation = continued(loaded, parts, accepted, history)
        strays = guards.results_without_call(conversation)
        if strays:
            raise Strays(strays)
        storing = guards.stored_of(conversation, accepted)
        said = guards.without_broken_calls(conversation)
        if budget is not None:
            said = prompt.within_budget(said, budget, {id(one): f"new{n}" for n, one in enumerate(storing.messages)})
        built = prompt.build_prompt(said, stored_system=loaded.system, system=parts.system, also=frozenset())
        require_valid({"messages": built.messages})
        for one in storing.messages:
            self.append(one.message)
        return built

    def append(self, message: Any, metadata: str = "{}", **changes: Any) -> Event:
        place = len(self.log)
        changes = {"tokens": tokens_of(message), **changes}
        self.log.append(event(f"e{place}", place, message, metadata_json=metadata, **changes))
        return self.log[-1]

    def answer(self, message: Any, *, accepted: MessageFilter | None = None) -> None:
        """A complete reply, delivered; stored as the filter accepts."""
        if (SkipEmpty() if accepted is None else accepted).accepts(message):
            self.append(message)
        self.answered_seq = self.log[-1].seq if self.log else 0

    def break_off(self, text: str) -> None:
        """A reply that broke off when this text had been sent."""
        if text:
            self.append(assistant(text), INTERRUPTED)

    def run_round(self, run: Run, message: Message, service_calls: Sequence[int]) -> None:
        """A round of a run: the reply, and the results of the calls that are the service's."""
        self.append(message, json_values.encode(run.mark_reply(service_calls)))
        for place in service_calls:
            call_id = message["tool_calls"][place]["id"]
            self.append(result(call_id, f"service {len(self.log)}"), json_values.encode(run.mark_result(place)))

    def delivered(self) -> None:
        self.answered_seq = self.log[-1].seq

    def archive(self, events: int, *, summary: bool) -> None:
        """A compaction of the oldest events, which end with a turn."""
        done = [replace(one, archived=True) for one in self.log[:events]]
        pair: list[Event] = []
        if summary and done:
            first = done[-1].seq + 1
            said = [user(f"Before {first}?"), assistant(f"Σ{first}")]
            pair = [event(f"s{first + n}", 0, one, seq=first + n, synthetic=True) for n, one in enumerate(said)]
        self.log = [*done, *pair, *self.log[events:]]


def tokens_of(message: Message) -> int:
    """One token a character of its text, and one of each call's."""
    made = message.get("tool_calls") or []
    return len(text_of(message) or "") + sum(len(one["function"]["arguments"]) for one in made)


class Strays(AssertionError):
    """Results for calls that are not open: 409 or 422 by what the whole log knows of them."""


def _named(name: str) -> Message:
    role = {"D": "developer"}.get(name[0], ROLES.get(name[0], ""))
    number = "".join(filter(str.isdigit, name))
    head, _, made = name.partition("c")
    if role == "assistant" and name != head:
        return call(*([f"call{number}{letter}" for letter in made] or [f"call{number}"]))
    if role == "tool":
        return result(f"call{name[1:]}", name)
    return {"role": role, "content": name}


def _brief(message: Any) -> str:
    made = [one["id"] for one in message.get("tool_calls") or []]
    text = message.get("content")
    return f"{text or ''}{made or ''}".replace(" ", "_").replace("'", "") or "-"
