"""Token counts, without a network: the vocabulary ships with the package."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

from app.domain.messages import count_of_other_parts, render

ENCODING = "o200k_base"

# The tokenizer holds Python's lock: in pieces of 2 ms other threads get their turn. A cut adds at most a token.
PIECE_LENGTH = 50_000

# Texts from this length on are worth a thread: about 2 ms.
LONG_TEXT = 50_000

# What a log keeps of it: a message of half a million pictures is not worth more.
_MOST = 2**31 - 1

CountTokens = Callable[[Mapping[str, Any]], int]


def count_text(text: str) -> int:
    """Tokens of a text; special tokens in it are ordinary text."""
    count = _tokenizer().count
    return sum(count(text[start : start + PIECE_LENGTH]) for start in range(0, len(text), PIECE_LENGTH))


def counter(tokens_per_part: int) -> CountTokens:
    """A count of a message's rendered form, with a flat price for every part that is not text."""

    def count(message: Mapping[str, Any]) -> int:
        return min(_MOST, count_text(render(message)) + tokens_per_part * count_of_other_parts(message))

    return count


@cache
def _tokenizer() -> Any:
    """The package's compiled tokenizer, without its Python layer.

    That layer builds tables of every vocabulary that nothing here reads: 0.7 s at start and 80 MB a process.
    """
    package = find_spec("bpe_openai")
    bindings = PathFinder.find_spec("_bindings", package.submodule_search_locations if package else None)
    if bindings is None or bindings.loader is None:
        raise ImportError("bpe-openai has no compiled tokenizer for this platform.")
    module = module_from_spec(bindings)
    bindings.loader.exec_module(module)
    return module.tokenizer_for_encoding(ENCODING)
