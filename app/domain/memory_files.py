"""Files of a memory, their versions, and who made them."""

from dataclasses import dataclass
from datetime import UTC, datetime

from app.domain.sessions import Session

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFile:
    """`version` is the number of the edit that made it what it is, in its store."""

    path: str
    content: str
    bytes: int
    version: int
    updated_at: datetime

    @property
    def tag(self) -> str:
        """What no other state of any file at this path ever has.

        The version alone begins anew in a store that was erased.
        """
        age = self.updated_at - _EPOCH
        return f"{self.version}-{(age.days * 86_400 + age.seconds) * 1_000_000 + age.microseconds:x}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileVersion:
    """What an edit made of a file, and under which path; `bytes` is None where it was deleted, or moved away."""

    path: str
    version: int
    bytes: int | None
    edited_at: datetime
    tool: str
    session_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedFile:
    """A file that is gone, with its last content that is kept: None where it is not."""

    path: str
    deleted_at: datetime
    version: int | None
    bytes: int | None


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
    """How many contents of a file are kept, for how long, and how many bytes all those of a store may take.

    The current content of a file counts as one of it, and takes nothing of the bytes.
    """

    max_versions: int
    days: int
    max_bytes: int
