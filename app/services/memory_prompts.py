"""The prompt that teaches a model its memory, with the reminder when one is due."""

import random
from dataclasses import dataclass

from app.domain.errors import FileNotFound
from app.domain.memory_prompts import REMINDER, Consolidation, Requests, index_part, rendered
from app.services.memories import Memories
from app.storage import memories as storage

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

    async def reminder(self, store: str, *, consolidate: bool | None) -> str | None:
        """The reminder that is due with this request, which is counted. `consolidate` overrides the trigger."""
        if consolidate is not None:
            return REMINDER if consolidate else None
        if self.trigger is None:
            return None
        async with self.memories.db.transaction() as connection:
            number, seconds = await storage.count_request(connection, store)
            drawn = random.random()  # noqa: S311 (it keeps no secret)
            request = Requests(number=number, seconds_since=seconds, drawn=drawn)
            if not self.trigger.fires(request):
                return None
            await storage.note_reminder(connection, store)
        return REMINDER

    async def parts(self, store: str, *, consolidate: bool | None, preload: bool) -> list[str]:
        """What goes to the system message of a chat, but what that holds already."""
        reminder = await self.reminder(store, consolidate=consolidate)
        return [*await self.prompt(store, preload=preload), *([] if reminder is None else [reminder])]
