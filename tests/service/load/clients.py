"""Clients under load, each with a session of its own and a room that it shares with others."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from random import Random

from tests.service.load import chats, events
from tests.service.load.events import Here
from tests.service.load.memory import OwnFile, SharedLines
from tests.service.load.model import Model
from tests.service.load.round_robin import RoundRobin
from tests.service.load.sessions import Session
from tests.service.scripted_model import Message

USERS = 5
_CLIENTS_IN_A_ROOM = 5
_LINES_IN_A_ROOM = 120
_ACTIONS_IN_A_SESSION = 15

_ON_EVENTS = {
    events.append: 30, events.append_unnamed: 4, events.read_context: 9, events.read_window: 7,
    events.read_pages: 3, events.stream_log: 2, events.search: 8, events.search_user: 4, events.compact: 2,
}  # fmt: skip


@dataclass
class Load:
    """What all clients share, and what they found wrong."""

    client: RoundRobin
    model: Model
    seed: int
    # Seconds between two actions of a client, on average.
    pause: float
    is_over: bool = False
    sessions: list[Session] = field(default_factory=list)
    rooms: dict[int, Session] = field(default_factory=dict)
    files: list[OwnFile] = field(default_factory=list)
    lines: dict[str, SharedLines] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _numbers: "count[int]" = field(default_factory=lambda: count(1))

    async def run(self, clients: int) -> None:
        for number in range(USERS):
            user = f"user-{number}"
            self.lines[user] = SharedLines(user)
            await self.lines[user].create(self.client)
        await asyncio.gather(*(_Client(self, place).run() for place in range(clients)))

    def open(self, user: str, *, compacts: bool, is_shared: bool = False) -> Session:
        self.sessions.append(Session(next(self._numbers), user, is_shared=is_shared, compacts=compacts))
        return self.sessions[-1]

    def room(self, number: int, user: str) -> Session:
        """A new one when it is full."""
        room = self.rooms.get(number)
        if room is None or len(room.lines) > _LINES_IN_A_ROOM:
            room = self.rooms[number] = self.open(user, compacts=number % 2 == 1, is_shared=True)
        return room


class _Client:
    def __init__(self, load: Load, place: int) -> None:
        self._load = load
        self._chance = Random(f"{load.seed} {place}")
        self._user = f"user-{place % USERS}"
        # Those of one room have the same user.
        self._room = place // (USERS * _CLIENTS_IN_A_ROOM) * USERS + place % USERS
        self._file = OwnFile(self._user, f"notes/{place}.md")
        load.files.append(self._file)
        self._own: Session | None = None
        self._view: list[Message] = []

    async def run(self) -> None:
        while not self._load.is_over:
            self._own = self._load.open(self._user, compacts=self._chance.random() < 0.3)
            self._view = []
            for _ in range(_ACTIONS_IN_A_SESSION):
                await asyncio.sleep(self._chance.random() * 2 * self._load.pause)
                if not self._load.is_over:
                    await self._act(self._own)
            if self._chance.random() < 0.1:
                await events.delete(self._here(self._own))

    async def _act(self, own: Session) -> None:
        is_in_room = self._chance.random() < 0.3
        here = self._here(self._load.room(self._room, self._user) if is_in_room else own)
        others = {"chat": 25, "edit": 8, "read_file": 3, "add_line": 5}
        weights = [*_ON_EVENTS.values(), *others.values()]
        [action] = self._chance.choices([*_ON_EVENTS, *others], weights=weights)
        match action:
            case "chat":
                await chats.chat(here, self._load.model, [] if is_in_room else self._view)
            case "edit":
                self._note(await self._file.edit(self._load.client))
            case "read_file":
                self._note(await self._file.read(self._load.client))
            case "add_line":
                self._note(await self._load.lines[self._user].add(self._load.client, self._chance))
            case _:
                await action(here)
        self._load.done[action if isinstance(action, str) else action.__name__] += 1

    def _here(self, session: Session) -> Here:
        return Here(self._load.client, session, self._chance, self._load.faults)

    def _note(self, fault: str | None) -> None:
        self._load.faults += [fault] if fault else []
