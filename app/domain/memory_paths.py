"""Paths in a memory store: relative, `/`-separated, normalised; nothing of any host."""

import unicodedata

from app.domain.errors import MemoryRefused

MAX_PATH_LENGTH = 512
MAX_NAME_LENGTH = 255

# How the root is called where tools and prompts speak of it.
ROOT = "/memories"


def normalised(path: str) -> str:
    """The path as it is stored; "" is the root. Raises MemoryRefused.

    >>> normalised("/memories/notes/a.md")
    'notes/a.md'
    """
    if fault := _fault(path):
        raise MemoryRefused(f"The path {_shown(path)} cannot be used: {fault}")
    return "/".join(segment for segment in _below_root(path).split("/") if segment not in {"", "."})


def file_path(path: str) -> str:
    """The same of a file, which the root is none."""
    usable = normalised(path)
    if not usable:
        raise MemoryRefused("The path names the root of the memory: name a file in it, such as notes.md.")
    return usable


def is_within(path: str, directory: str) -> bool:
    """Whether a file is in a directory, at any depth; everything is in the root."""
    return not directory or path.startswith(f"{directory}/")


def shown(path: str) -> str:
    """A path as texts for a model name it, which can send it back so."""
    return path or "/"


def _below_root(path: str) -> str:
    if path in {ROOT, "/"}:
        return ""
    return path.removeprefix(f"{ROOT}/")


def _fault(path: str) -> str | None:
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in path):
        return "it holds a control character."
    if "\\" in path:
        return "names are separated by '/', not by a backslash."
    below = _below_root(path)
    if below.startswith("/") and below == path:
        return f"it is absolute. Begin with the name of a file or directory, or with {ROOT}/."
    segments = below.removesuffix("/").split("/")
    if ".." in segments:
        return "'..' is not allowed; name it from the root of the memory."
    if below and "" in segments:
        return "it has an empty name between two '/'."
    if len(below) > MAX_PATH_LENGTH or any(len(segment) > MAX_NAME_LENGTH for segment in segments):
        return f"it has more than {MAX_PATH_LENGTH} characters, or a name more than {MAX_NAME_LENGTH}."
    return None


def _shown(path: str) -> str:
    return repr(path if len(path) <= 100 else f"{path[:100]}…")
