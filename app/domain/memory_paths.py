"""Paths in a memory store: relative, `/`-separated, normalised; nothing of any host."""

import unicodedata

from app.domain.errors import MemoryRefused

MAX_PATH_LENGTH = 512
MAX_NAME_LENGTH = 255

# How the root is called where tools and prompts speak of it.
ROOT = "/memories"

# Control and format characters (bidirectional ones among them), line separators, halves of surrogate pairs: a path
# that holds one is not what it looks like.
_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def normalised(path: str) -> str:
    """The path as it is stored, in NFC; "" is the root. Raises MemoryRefused.

    >>> normalised("/memories/notes/a.md")
    'notes/a.md'
    """
    # Normalising takes time in the square of a run of combining marks: what is too long is refused before.
    composed = path if len(path) > 4 * MAX_PATH_LENGTH else unicodedata.normalize("NFC", path)
    if fault := _fault(composed):
        raise MemoryRefused(f"The path {quoted(path)} cannot be used: {fault}")
    return "/".join(segment for segment in _below_root(composed).split("/") if segment not in {"", "."})


def entry_path(path: str) -> str:
    """The same of a file or directory in the root, which itself is none."""
    usable = normalised(path)
    if not usable:
        raise MemoryRefused("This path is the root of the memory: name a file or directory in it, such as notes.md.")
    return usable


def file_path(path: str) -> str:
    """The same of a file."""
    usable = entry_path(path)
    if names_directory(path):
        raise MemoryRefused(f"{quoted(path)} is a path of a directory: name a file in it, such as {usable}/notes.md.")
    return usable


def names_directory(path: str) -> bool:
    """Whether a path can only be that of a directory, as its end shows."""
    return path.endswith(("/", "/."))


def is_within(path: str, directory: str) -> bool:
    """Whether a file is in a directory, at any depth; everything is in the root."""
    return not directory or path.startswith(f"{directory}/")


def parents_of(path: str) -> list[str]:
    """The directories above it, without the root."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


def shown(path: str) -> str:
    """A path as texts for a model name it, which can send it back so."""
    return path or "/"


def quoted(path: str) -> str:
    """What was sent as a path, for a text that says what is wrong with it."""
    return repr(path if len(path) <= 100 else f"{path[:100]}…")


def _below_root(path: str) -> str:
    if path in {ROOT, "/"}:
        return ""
    return path.removeprefix(f"{ROOT}/")


def _fault(path: str) -> str | None:
    below = _below_root(path)
    if len(below) > MAX_PATH_LENGTH or any(len(name) > MAX_NAME_LENGTH for name in below.split("/")):
        return f"it has more than {MAX_PATH_LENGTH} characters, or a name more than {MAX_NAME_LENGTH}: shorten it."
    if unseen := next((one for one in path if unicodedata.category(one) in _UNSEEN), None):
        return f"it holds the unseen character U+{ord(unseen):04X}: leave that out."
    if "\\" in path:
        return "names are separated by '/', not by a backslash."
    if below.startswith("/") and below == path:
        return f"it is absolute. Begin with the name of a file or directory, or with {ROOT}/."
    segments = below.removesuffix("/").split("/")
    if ".." in segments:
        return "'..' is not allowed; name it from the root of the memory."
    if below and "" in segments:
        return "it has an empty name between two '/': write one '/'."
    return None
