"""The prompt that teaches a model its memory, with the reminder when one is due."""

import random
from dataclasses import dataclass

from app.domain.errors import FileNotFound
from app.domain.memory_prompts import REMINDER, Consolidation, Requests, index_part, rendered
from app.domain.sessions import Session
from app.services.memories import Memories
from app.storage import memories as storage
from app.storage import sessions

INDEX = "MEMORY.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPrompts:
    """`template` has a placeholder for where the memory is; without a trigger nobody is reminded unasked."""

    memories: Memories
    template: str
    trigger: Consolidation | None

    async def prompt(self, store: str, *, preload: bool) -> list[str]:
        """The prompt of a store, and the beginning of its index where that is asked for and there is one."""
        prompt = rendered(self.template)
        if not preload:
            return [prompt]
        try:
            index = await self.memories.get(store, INDEX)
        except FileNotFound:
            return [prompt]
        return [prompt, index_part(index.content)]

    async def reminder(self, store: str, *, consolidate: bool | None, session: Session | None = None) -> str | None:
        """The reminder that is due with this request, which is counted. `consolidate` overrides the trigger.

        It passes for given: who then gets no answer says `owe`. Raises SessionNotFound when the session of the
        request is gone.
        """
        if consolidate is not None:
            return REMINDER if consolidate else None
        if self.trigger is None:
            return None
        async with self.memories.db.transaction() as connection:
            number, seconds, is_owed = await storage.count_request(connection, store)
            if session is not None:  # Nothing of a user who was erased comes back.
                await sessions.get_by_key(connection, session)
            drawn = random.random()  # noqa: S311 (it keeps no secret)
            request = Requests(number=number, seconds_since=seconds, drawn=drawn)
            if not (is_owed or self.trigger.fires(request)):
                return None
            await storage.note_reminder(connection, store)
        return REMINDER

    async def owe(self, store: str) -> None:
        """The request with the reminder was not answered: the next one has it again."""
        async with self.memories.db.transaction() as connection:
            await storage.owe_reminder(connection, store)

    async def parts(
        self, store: str, *, consolidate: bool | None, preload: bool, session: Session | None = None
    ) -> list[str]:
        """What goes to the system message of a chat, but what that holds already."""
        reminder = await self.reminder(store, consolidate=consolidate, session=session)
        return [*await self.prompt(store, preload=preload), *([] if reminder is None else [reminder])]
