"""Logs: one JSON object a line, with the request's id and never the content of a message."""

import logging
import os
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import structlog


def configure_logs(*, level: int = logging.INFO, tell_process: bool = False) -> None:
    """`tell_process`: whether each line says which process wrote it."""
    sys.stderr = _unbroken(sys.stderr)
    common: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _place_of_error,
        *([_process] if tell_process else []),
    ]
    structlog.configure(
        processors=[*common, structlog.processors.JSONRenderer()],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    # What uvicorn, SQLAlchemy and asyncio have to say.
    others = logging.StreamHandler(sys.stderr)
    others.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[others], level=logging.WARNING)


class _Unbroken:
    """A stream whose writes never fail: nobody's request fails because a disk of logs is full, or its reader gone."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _unbroken(stream: TextIO) -> TextIO:
    return stream if isinstance(stream, _Unbroken) else cast("TextIO", _Unbroken(stream))


def sqlstate_of(error: BaseException | None) -> str | None:
    """What PostgreSQL said, where an error goes back to that: the first thing to know at night."""
    return next((state for each in _chain(error) if (state := getattr(each, "sqlstate", None))), None)


def _place_of_error(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Where an error came from and of what type it is: its words and variables may be those of a conversation."""
    given = entry.pop("exc_info", None)
    error = given if isinstance(given, BaseException) else given[1] if isinstance(given, tuple) else sys.exception()
    if given and error is not None:
        entry["exception"] = list(map(_described, _chain(error)))
    return entry


def _process(_: Any, __: str, entry: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {**entry, "pid": os.getpid()}


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        if isinstance(error, BaseExceptionGroup):
            for member in error.exceptions:
                yield from _chain(member)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _described(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)
    return {
        "type": type(error).__qualname__,
        "sqlstate": getattr(error, "sqlstate", None),
        "frames": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames],
    }
