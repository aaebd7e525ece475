"""Settings: environment variables `TURNKEEPER_*` and `.env`, checked before anything starts."""

import os
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import structlog
from dotenv import dotenv_values
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from app.domain import json_values
from app.domain.memory_trees import Limits
from app.rates import Rates

PREFIX = "TURNKEEPER_"

_DATABASE_SCHEMES = ("postgresql://", "postgresql+asyncpg://", "postgres://")

# Settings that are written like parts of a chat request.
_JSON = ("chat_filter", "chat_message_filter", "chat_compaction", "chat_memory", "memory_consolidation")

# What HS256 asks for (RFC 7518, 3.2).
_MIN_SECRET_BYTES = 32

# Beyond these a number is a slip of the hand, and would fail in PostgreSQL or a timer, some day.
_LONGEST = 366 * 24 * 3_600  # seconds
_LATEST = 100 * _LONGEST
_MOST = 1_000_000
_MOST_TOKENS = 1_000_000_000
_LARGEST = 2**30  # bytes: PostgreSQL's largest value
_LARGEST_STORE = 2**40

_HEADER_SAFE = re.compile(r"[!-~]+")

log = structlog.get_logger()

_PAGE = (
    "# Settings",
    "",
    "Environment variables, or lines of a file `.env`. An unknown or wrong one stops the start and says why.",
    "",
)


class SettingsError(Exception):
    """The settings cannot be used; the message says which and what to do."""


class Settings(BaseSettings):
    """Everything that can be set. Each name is an environment variable with the prefix `TURNKEEPER_`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        arbitrary_types_allowed=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8088, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    workers: int = Field(1, ge=1, le=1_000, description="Processes that serve, on one port.")
    database_url: SecretStr | None = Field(
        None, description="PostgreSQL 16 or newer, `postgresql://…`; without it an embedded one is started."
    )
    data_dir: Path = Field(Path(".turnkeeper"), description="Where the embedded PostgreSQL keeps its data.")
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="Service keys, separated by commas, beside those that `turnkeeper keys` makes. "
        "Without any, only this machine is served.",
    )
    token_secret: Annotated[tuple[SecretStr, ...], NoDecode] = Field(
        (),
        description="Signs tokens: at least 32 random bytes; without: no tokens. Of two, separated by a comma, "
        "the first signs and both are accepted.",
    )
    allowed_hosts: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="`Host` values that are answered; default: any with keys, loopback names without."
    )
    default_ttl_seconds: int = Field(
        5_184_000, gt=0, le=_LATEST, description="Lifetime of a session that names none."
    )
    sweep_interval_seconds: float = Field(
        3_600, gt=0, le=_LONGEST, description="How often expired sessions are removed."
    )
    sweep_batch: int = Field(
        1_000, gt=0, le=_MOST, description="How many rows the sweeper removes in one transaction."
    )
    allow_system_messages: bool = Field(False, description="Whether new sessions store system messages.")
    recall_page_size: int = Field(10, ge=1, le=100, description="Results in one page of a recall tool.")
    tokens_per_part: int = Field(
        1_000, ge=0, le=_MOST, description="Tokens that a content part which is not text counts: an image, a file."
    )
    upstream_url: str | None = Field(
        None,
        description="The LLM that chats go to and summaries come from: an OpenAI-compatible endpoint, such as `https://…/v1`.",
    )
    upstream_api_key: SecretStr | None = Field(None, description="Key for the upstream.")
    upstream_model: str | None = Field(None, description="Model to use where a request names none.")
    upstream_models: Annotated[tuple[str, ...] | None, NoDecode] = Field(
        None, description="Models that may be used, separated by commas; default: any."
    )
    upstream_connect_timeout_seconds: float = Field(
        5, gt=0, le=_LONGEST, description="How long to wait for a connection."
    )
    upstream_first_byte_timeout_seconds: float = Field(
        60, gt=0, le=_LONGEST, description="How long to wait for an answer."
    )
    upstream_idle_timeout_seconds: float = Field(
        60, gt=0, le=_LONGEST, description="How long to wait for the next piece of an answer."
    )
    upstream_replay_fields: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Further fields of stored messages that the upstream takes back, separated by commas."
    )
    chat_filter: Annotated[Any, NoDecode] = Field(
        None, description="Filter of chats that name none, and base of theirs: JSON, as in a request."
    )
    chat_message_filter: Annotated[Any, NoDecode] = Field(
        None, description='Which messages chats store: JSON, such as `{"types": ["user", "assistant"]}`.'
    )
    chat_compaction: Annotated[Any, NoDecode] = Field(
        None, description='Compaction by chats, and of `/compact` without a strategy: JSON `{"trigger", "strategy"}`.'
    )
    chat_memory: Annotated[Any, NoDecode] = Field(
        None, description="What `memory` of a chat request is where that leaves it out: JSON."
    )
    chat_default_user_id: str = Field("default-user", description="Owner of sessions that name none.")
    chat_on_busy: Literal["wait", "reject", "interleave"] = Field(
        "wait", description="What a request does whose session is at another's turn."
    )
    chat_busy_timeout_seconds: float = Field(45, gt=0, le=_LONGEST, description="How long it waits at most (409).")
    chat_max_tool_rounds: int = Field(
        8,
        ge=1,
        le=1_000,
        description="How often the service runs its tools in one request before the model has to answer.",
    )
    chat_lease_seconds: float = Field(
        30, gt=0, le=_LONGEST, description="How long a turn outlives a killed service; it is renewed while one works."
    )
    chat_max_context_tokens: int | None = Field(
        None, gt=0, le=_MOST_TOKENS, description="Tokens of history and question that a chat sends at most."
    )
    summary_max_input_tokens: int = Field(
        16_000, gt=0, le=_MOST_TOKENS, description="Tokens of the oldest whole turns that one pass summarizes."
    )
    memory_max_file_bytes: int = Field(
        262_144, gt=0, le=_LARGEST, description="Largest file of a memory store, in bytes."
    )
    memory_prompt_file: Path | None = Field(
        None,
        description="Template of the memory prompt, with the placeholder `{store}`; by default the built-in one.",
    )
    memory_consolidation: Annotated[Any, NoDecode] = Field(
        None, description='When a model is reminded to consolidate its memory: JSON, such as `{"every": "24h"}`.'
    )
    memory_max_files: int = Field(1_000, gt=0, le=_MOST, description="Files in one memory store.")
    memory_max_store_bytes: int = Field(
        16_777_216, gt=0, le=_LARGEST_STORE, description="Bytes of all files in one memory store."
    )
    memory_max_versions: int = Field(
        50, gt=0, le=2**31 - 1, description="Versions of a memory file that are kept, the current one among them."
    )
    memory_version_days: int = Field(
        90, gt=0, le=36_500, description="How many days a version is kept that another one came after."
    )
    memory_max_history_bytes: int = Field(
        67_108_864,
        ge=0,
        le=_LARGEST_STORE,
        description="Bytes of all earlier versions in one memory store; the oldest go first.",
    )
    pool_size: int = Field(
        10, ge=1, le=1_000, description="Database connections; searches get half as many of their own."
    )
    pool_timeout_seconds: float = Field(
        5, gt=0, le=_LONGEST, description="How long a request waits for a connection (503)."
    )
    statement_timeout_ms: int = Field(5_000, gt=0, le=2**31 - 1, description="How long one statement may run.")
    client_timeout_seconds: float = Field(
        60,
        gt=0,
        le=_LONGEST,
        description="How long a client may take for the head of a request, or do nothing in the middle of one.",
    )
    shutdown_grace_seconds: float = Field(
        20,
        gt=0,
        le=_LONGEST,
        description="How long answers may take to end at SIGTERM, before they are stored as interrupted.",
    )
    rate_limit: Rates = Field(
        (),
        description="How often one credential may ask one process, such as `100/minute` (429); `off`: as it likes.",
    )
    metrics_open: bool = Field(False, description="Whether `/metrics` is answered without a key.")
    max_body_bytes: int = Field(10_485_760, gt=0, le=_LARGEST, description="Largest request body (413).")

    @property
    def memory_limits(self) -> Limits:
        return Limits(
            max_file_bytes=self.memory_max_file_bytes,
            max_files=self.memory_max_files,
            max_store_bytes=self.memory_max_store_bytes,
        )

    @field_validator(
        "api_keys", "token_secret", "allowed_hosts", "upstream_models", "upstream_replay_fields", mode="before"
    )
    @classmethod
    def _split(cls, value: Any) -> Any:
        if isinstance(value, str):
            parts = tuple(part.strip() for part in value.split(",") if part.strip())
            if not parts:
                raise ValueError("There is nothing between the commas: leave it out, or name something.")
            return parts
        return value

    @field_validator(*_JSON, mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return json_values.decode(value)
        except json_values.InvalidJson:
            raise ValueError(f"This is no JSON: {value!r}.") from None

    @field_validator("database_url")
    @classmethod
    def _is_postgresql(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(_DATABASE_SCHEMES):
            raise ValueError("This is no PostgreSQL: use postgresql://user:password@host/database.")
        return value

    @field_validator("api_keys", "upstream_api_key")
    @classmethod
    def _fits_a_header(cls, value: Any) -> Any:
        keys = value if isinstance(value, tuple) else (value,)
        if any(key is not None and not _HEADER_SAFE.fullmatch(key.get_secret_value()) for key in keys):
            raise ValueError("A key consists of printable ASCII characters without spaces.")
        return value

    @field_validator("token_secret")
    @classmethod
    def _is_hard_to_guess(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        if len(value) > 2 or any(len(secret.get_secret_value().encode()) < _MIN_SECRET_BYTES for secret in value):
            raise ValueError(f"One or two secrets of at least {_MIN_SECRET_BYTES} bytes: `openssl rand -hex 32`.")
        return value

    @field_validator("upstream_url")
    @classmethod
    def _is_http(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith(("http://", "https://")) and _has_a_host(value)):
            raise ValueError("This is no HTTP endpoint: use https://host/v1.")
        return value


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment. Raises SettingsError, which names what is unknown or wrong."""
    for name in injected_settings(os.environ):
        log.warning("setting_ignored", name=name, reason="injected by Kubernetes for a service of this name")
        del os.environ[name]
    if unknown := unknown_settings({*dotenv_values(".env"), *os.environ}):
        raise SettingsError(f"Unknown settings: {', '.join(unknown)}. Known are: {', '.join(setting_names())}.")
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        raise SettingsError("\n".join(map(_sentence, error.errors(include_input=False)))) from None


def setting_names() -> list[str]:
    return sorted(f"{PREFIX}{name.upper()}" for name in Settings.model_fields)


def settings_page() -> str:
    """The reference of all settings, in Markdown."""
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_default(field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join([*_PAGE, "| setting | default | |", "|---|---|---|", *rows]) + "\n"


def unknown_settings(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if name.upper().startswith(PREFIX)} - set(setting_names()))


def injected_settings(environment: Mapping[str, str]) -> list[str]:
    """What Kubernetes sets in every pod next to a service that is called `turnkeeper`."""
    return [
        name
        for name, value in environment.items()
        if name.startswith((f"{PREFIX}SERVICE_", f"{PREFIX}PORT_"))
        or (name == f"{PREFIX}PORT" and value.startswith("tcp://"))
    ]


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _has_a_host(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:  # The port is none, or the address.
        return False


def _default(field: FieldInfo) -> str:
    value = field.get_default()
    return "none" if value is None or value == () else f"`{str(value).lower() if value is False else value}`"


def _sentence(error: ErrorDetails) -> str:
    name = PREFIX + str(error["loc"][0]).upper() if error["loc"] else ""
    message = error["msg"].removeprefix("Value error, ")
    return f"{name}: {message}" if name else message
