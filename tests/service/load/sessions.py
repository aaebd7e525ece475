"""Sessions under load: what was said in them and acknowledged, and what must hold of them then and in the end."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.service.log_laws import holds_every_word_once, holds_what_was_said, is_in_the_order_of_events
from tests.service.scripted_model import Line, Message, Words, is_quote, words_of


@dataclass(eq=False)
class Session:
    """One session, its lines by their words, and what its clients know of it.

    `is_shared`: several clients talk in it. `compacts`: prompts and contexts need not hold all of it.
    """

    number: int
    user: str
    is_shared: bool = False
    compacts: bool = False
    lines: dict[str, Line] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    # The highest that was acknowledged.
    version: int = 0
    is_deleted: bool = False
    # Calls without results: the log has them, prompts do not.
    abandoned: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.id = f"session-{self.number}"
        self.words = Words(self.number)

    def says(self, role: str, text: str = "", **more: Any) -> Line:
        line = Line({"role": role, "content": f"{self.words.new()} {text}", **more})
        self.lines[line.word] = line
        return line

    def acknowledge(self, *words: str) -> None:
        for word in words:
            self.lines[word].is_known(accepted=True)

    def settled(self, before: float) -> list[Line]:
        """What was acknowledged before then."""
        # A copy: the model's threads add lines meanwhile.
        return [line for line in list(self.lines.values()) if line.known < before]

    def faults_of_words(self, messages: list[Message], before: float) -> Iterator[str]:
        """Of a prompt, or of a context: of this session alone, nothing twice, nothing acknowledged missing."""
        said = [message for message in messages if message["role"] != "system" and not is_quote(message)]
        words = [word for message in said for word in words_of(message)]
        yield from (f"{word} is there {words.count(word)} times." for word in set(words) if words.count(word) > 1)
        yield from (f"{word} was not said here." for word in words if word not in self.lines)
        if not self.compacts:
            missing = [line for line in self.settled(before) if line.word not in {*words, *self.abandoned}]
            yield from (f"{line.word} ({line.role}) was acknowledged, and is missing." for line in missing)

    def faults_of_log(self) -> Iterator[str]:
        """In the end."""
        yield from holds_every_word_once(self)
        yield from holds_what_was_said(self)
        yield from is_in_the_order_of_events(self)
        seqs = [event["seq"] for event in self.log]
        if seqs != sorted(set(seqs)):
            yield f"The order is not that of seq: {seqs}."
        if len({event["id"] for event in self.log}) < len(seqs):
            yield "An event id is there twice."
