"""A simulated model behind the scripted upstream, and the record of what was said, to hold prompts and logs to."""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, Literal

from tests.upstream import Answer, Call

Message = dict[str, Any]

WORD = re.compile(r"w\d{8}")
SUMMARIZE = "SUMMARIZE conversation"
SEARCH = "conversation_search"

# Orders all that clients and the model see; next() is atomic.
_clock = count(1)


def now() -> int:
    return next(_clock)


class Words:
    """Every text of a conversation has a word of its own, and no other conversation has it."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._serial = count()

    def new(self) -> str:
        return f"w{self._number:04}{next(self._serial):04}"


def words_of(message: Message) -> list[str]:
    arguments = (call["function"]["arguments"] for call in message.get("tool_calls") or [])
    return WORD.findall(" ".join([text_of(message), message.get("refusal") or "", *arguments]))


def text_of(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)


def calls_of(answer: Answer, *, of_client: bool) -> list[Call]:
    return [call for call in answer.calls if (call[1] != SEARCH) == of_client]


def as_call(id_: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def accepts(message_filter: Any, message: Message) -> bool:
    """What a message filter means, said once more."""
    match message_filter:
        case None:
            says = text_of(message).strip() or message.get("tool_calls") or message.get("refusal")
            return bool(message["role"] != "assistant" or says)
        case "all":
            return True
        case {"types": types}:
            return message["role"] in types
        case {"contains": term}:
            return term.lower() in text_of(message).lower()
        case {"not": negated}:
            return not accepts(negated, message)
        case {"or": several}:
            return any(accepts(one, message) for one in several)
    raise ValueError(message_filter)


@dataclass(eq=False)
class Line:
    """Something said, and what those who said it know of its place in the log.

    `stored`: it is there once. `cut`: it broke off; what had been sent of it is there, marked. `absent`: it is not
    there. `unsure`: it is there once or not at all, as its client left before it knew. A result has its `call`.
    """

    message: Message
    call: "Line | None" = None
    fate: Literal["unsure", "stored", "cut", "absent"] = "unsure"
    in_doubt: bool = False
    # When it was said; since when it is sure to be stored; since when each prompt has to hold it.
    began: float = field(default_factory=now)
    known: float = inf
    settled: float = inf
    # What its client got of it before it broke off.
    got: str = ""

    @property
    def word(self) -> str:
        return words_of(self.message)[0]

    @property
    def role(self) -> str:
        return self.message["role"]

    def is_known(self, *, accepted: bool) -> None:
        self.fate = "stored" if accepted else "absent"
        self.known = min(self.known, now())

    def is_settled(self) -> None:
        self.settled = min(self.settled, now())


@dataclass
class Step:
    """One answer of the model, what it says, and how that ends.

    `goes on`: the service asks again by itself. `answers`: the client gets all of it. `fails`, `breaks`: it gets
    nothing, or a part. `leaves`: the model says no more until the client is gone.
    """

    answer: Answer
    end: Literal["goes on", "answers", "fails", "breaks", "leaves"]
    line: Line | None = None


@dataclass(eq=False, kw_only=True)
class Attempt:
    """One request: its new messages, and what the model answers, round by round.

    `question` is the newest thing that its user said. `hidden` are words that none of its prompts may hold. `refusal`
    is the problem that it has to be refused with, `replayed` the answer that it has to get from the log.
    """

    name: str
    conversation: Any
    client: Any
    body: dict[str, Any]
    new: list[Line]
    question: list[str]
    steps: list[Step]
    hidden: list[str] = field(default_factory=list)
    key: str | None = None
    refusal: str | None = None
    replayed: Message | None = None
    prompts: int = 0
    began: int = field(default_factory=now)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def streamed(self) -> bool:
        return bool(self.body.get("stream"))

    @property
    def memory(self) -> dict[str, Any]:
        return self.body["memory"]

    @property
    def end(self) -> Step | None:
        return self.steps[-1] if self.steps else None

    def given(self) -> list[Message]:
        """The messages of the request that are for its prompt."""
        replaces = self.memory.get("history") == "replace"
        return [line.message for line in self.new] if replaces else self.body["messages"]

    def ends(self, *how: str) -> bool:
        return self.end is not None and self.end.end in how

    def text_before_end(self) -> str:
        return "".join(step.answer.text or "" for step in self.steps[:-1] if step.answer.status == 200)

    def next_answer(self) -> Answer:
        """What the model says now. Whatever the service asks the model about, it has stored before."""
        for line in self.new:
            if line.fate != "stored":
                line.is_known(accepted=self.conversation.stores(line))
        if self.prompts and (before := self.steps[self.prompts - 1].line):
            before.is_known(accepted=True)
            before.is_settled()
        step = self.steps[self.prompts]
        self.prompts += 1
        if step.line is not None:
            step.line.began = now()
        if self.prompts == len(self.steps):
            self.loop.call_soon_threadsafe(self.arrived.set)
        return step.answer


@dataclass(frozen=True, eq=False)
class Prompt:
    """A request as the model got it."""

    attempt: Attempt
    request: dict[str, Any]

    @property
    def conversation(self) -> list[Message]:
        """Without system messages, and without the results of searches, which quote others."""
        said = [message for message in self.request["messages"] if message["role"] != "system"]
        return [message for message in said if not is_quote(message)]

    def words(self, *roles: str) -> Iterator[str]:
        """The words of those roles, of all when none is named."""
        for message in self.conversation:
            if not roles or message["role"] in roles:
                yield from words_of(message)


def is_quote(message: Message) -> bool:
    """Whether it is a search's result, or an elided one."""
    return message["role"] == "tool" and text_of(message).startswith(("[{", "No results", "[elided"))


class Model:
    """Answers in the upstream's place, by the steps of each attempt, and keeps all that it was asked."""

    def __init__(self) -> None:
        self.attempts: dict[str, Attempt] = {}
        self.prompts: list[Prompt] = []
        # With the number of the conversation that they are of.
        self.summaries: list[tuple[int, dict[str, Any]]] = []
        self.faults: list[str] = []

    def __call__(self, request: dict[str, Any]) -> Answer:
        first = request["messages"][0]
        if first["role"] == "system" and first["content"].startswith(SUMMARIZE):
            return self._summary(int(first["content"].removeprefix(SUMMARIZE)), request)
        attempt = self.attempts[request["user"]]
        if attempt.prompts == len(attempt.steps):
            self.faults.append(f"{attempt.name}: The model was asked once more than it was needed.")
            return Answer(status=400)
        self.prompts.append(Prompt(attempt, request))
        return attempt.next_answer()

    def _summary(self, number: int, request: dict[str, Any]) -> Answer:
        self.summaries.append((number, request))
        match len(self.summaries) % 8:
            case 3:
                return Answer(" ")
            case 6:
                return Answer(status=500, headers={"Retry-After": "60"})
        return Answer(f"w{number:04}{9000 + len(self.summaries) % 1000} is what was said.")


class Reply:
    """The assistant's message as a client puts it together from the chunks of a stream."""

    def __init__(self) -> None:
        self._fields: Message = {"role": "assistant", "content": ""}
        self._calls: dict[int, dict[str, Any]] = {}

    @property
    def text(self) -> str:
        return self._fields["content"]

    def message(self) -> Message:
        calls = [self._calls[index] for index in sorted(self._calls)]
        return {**self._fields, "tool_calls": calls} if calls else self._fields

    def add(self, chunk: dict[str, Any]) -> None:
        for choice in chunk["choices"]:
            for name in ("content", "refusal"):
                if piece := choice["delta"].get(name):
                    self._fields[name] = self._fields.get(name, "") + piece
            self._add_calls(choice["delta"].get("tool_calls") or [])

    def _add_calls(self, fragments: Sequence[dict[str, Any]]) -> None:
        for fragment in fragments:
            call = self._calls.setdefault(fragment["index"], as_call("", "", ""))
            call["id"] = call["id"] or fragment.get("id", "")
            for name in ("name", "arguments"):
                call["function"][name] += fragment.get("function", {}).get(name) or ""


def data_of(line: str) -> Any:
    """What a line of a stream says: a chunk, None at the end, and nothing that is a comment."""
    data = line.removeprefix("data: ")
    return None if data == "[DONE]" else json.loads(data)
