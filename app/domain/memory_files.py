"""Files of a memory, their versions, and who made them."""

from dataclasses import dataclass
from datetime import datetime

from app.domain.sessions import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """`version` is the number of the edit that made it what it is, in its store."""

    path: str
    content: str
    bytes: int
    version: int
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """What an edit made of a file; `bytes` is None where it was deleted."""

    version: int
    bytes: int | None
    edited_at: datetime
    tool: str
    session_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Editor:
    """By what, and in which conversation, a memory is edited: one that is gone by then edits nothing."""

    tool: str
    session: Session | None = None

    @property
    def session_id(self) -> str | None:
        return None if self.session is None else self.session.id


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """How many versions of a file are kept, and for how long."""

    max_versions: int
    days: int
