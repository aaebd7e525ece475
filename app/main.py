"""The composition root: nothing is built before `create_app` is called."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import structlog
from fastapi import FastAPI

from app.api import chat as chat_routes
from app.api import compactions as compaction_routes
from app.api import events, health, openapi, problems, search, sessions, tools, users
from app.api import memories as memory_routes
from app.api import metrics as metrics_route
from app.api import tokens as token_routes
from app.api.chat_defaults import chat_defaults
from app.api.dependencies import Services
from app.api.gate import OPEN_PATHS, Gate
from app.api.mcp import McpEndpoint, McpRoute
from app.api.middleware import BodyLimit, RequestLog, StrictUrl
from app.api.observing import Observing
from app.api.rate_limits import RateLimit
from app.config import Settings, is_loopback
from app.domain import tokens
from app.domain.memory_archives import largest_archive
from app.domain.memory_files import Keeping
from app.domain.spans import UNTRACED
from app.llm.upstream import Upstream, UpstreamSettings
from app.metrics import Metrics
from app.services.access_tokens import AccessTokens
from app.services.chat import Chat, ChatSettings
from app.services.chat_compaction import ChatCompactions
from app.services.compaction import Compactor
from app.services.memories import Memories
from app.services.memory_prompts import MemoryPrompts
from app.services.questions import Questions
from app.services.service_keys import KeyRing
from app.services.sweeping import Sweeping
from app.services.turns import Turns
from app.storage.database import Database
from app.tracing import configured_tracing

log = structlog.get_logger()

ROUTERS = tuple(
    module.router
    for module in (
        sessions,
        events,
        chat_routes,
        compaction_routes,
        memory_routes,
        users,
        search,
        tools,
        token_routes,
        health,
        metrics_route,
    )
)


def create_app(settings: Settings, *, database_url: str) -> FastAPI:
    """The service on a database that is migrated already."""
    metrics = Metrics()
    tracing = configured_tracing()
    db = Database(
        database_url,
        pool_size=settings.pool_size,
        pool_timeout=settings.pool_timeout_seconds,
        statement_timeout_ms=settings.statement_timeout_ms,
        observer=metrics,
    )
    upstream = Upstream(_upstream_settings(settings), metrics, tracing or UNTRACED)
    count_tokens = tokens.counter(settings.tokens_per_part)
    compactor = Compactor(
        db=db,
        upstream=upstream,
        count_tokens=count_tokens,
        max_input_tokens=settings.summary_max_input_tokens,
        observer=metrics,
    )
    compactions = ChatCompactions(compactor)
    defaults = chat_defaults(settings)
    memories = _memories(db, settings)
    memory_prompts = MemoryPrompts(memories=memories, template=defaults.memory_prompt, trigger=defaults.consolidation)
    services = Services(
        db=db,
        settings=settings,
        count_tokens=count_tokens,
        sweeping=Sweeping(db, interval=settings.sweep_interval_seconds, batch=settings.sweep_batch, observer=metrics),
        compactor=compactor,
        upstream=upstream,
        chat=Chat(
            db=db,
            upstream=upstream,
            turns=Turns(
                db, lease_seconds=settings.chat_lease_seconds, busy_timeout=settings.chat_busy_timeout_seconds
            ),
            compactions=compactions,
            questions=Questions(
                db=db,
                count_tokens=count_tokens,
                replay_fields=frozenset(settings.upstream_replay_fields),
                observer=metrics,
            ),
            memory_prompts=memory_prompts,
            settings=_chat_settings(settings),
            observer=metrics,
        ),
        chat_defaults=defaults,
        memories=memories,
        memory_prompts=memory_prompts,
        metrics=metrics,
        keys=KeyRing(db, [key.get_secret_value() for key in settings.api_keys]),
        access_tokens=AccessTokens(db, [secret.get_secret_value() for secret in settings.token_secret]),
    )

    mcp = McpEndpoint(services)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await _check(db)
        await services.keys.refresh()
        tokens.count_text("")  # Loads the vocabulary before the first request needs it.
        sweeper = asyncio.create_task(services.sweeping.run())
        yield
        sweeper.cancel()
        with suppress(asyncio.CancelledError):
            await sweeper
        await mcp.close()
        await services.chat.finish()
        await upstream.close()
        await db.close()
        if tracing is not None:
            await tracing.close()

    app = FastAPI(
        title="Turnkeeper",
        version=openapi.VERSION,
        description=openapi.DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,  # `/v1/sessions/` does not exist: a 404 says so, a redirect is no problem document.
        separate_input_output_schemas=False,
        generate_unique_id_function=openapi.operation_id,
    )
    app.state.services = services
    for router in ROUTERS:
        app.include_router(router)
    app.router.routes.append(McpRoute(mcp))
    problems.install(app)
    openapi.install(app)
    # The last one added is the outermost.
    app.add_middleware(StrictUrl)
    app.add_middleware(
        BodyLimit,
        max_bytes=settings.max_body_bytes,
        max_memory_bytes={"archive": largest_archive(memories.limits), "file": memories.limits.max_file_bytes},
    )
    if settings.rate_limit:
        app.add_middleware(RateLimit, limits=settings.rate_limit)
    app.add_middleware(
        Gate,
        keys=services.keys,
        tokens=services.access_tokens,
        allowed_hosts=settings.allowed_hosts,
        open_paths=OPEN_PATHS | ({metrics_route.PATH} if settings.metrics_open else set()),
        is_public=not is_loopback(settings.host),
    )
    if tracing is not None:
        app.add_middleware(tracing.middleware, tracing=tracing)
    app.add_middleware(RequestLog)
    app.add_middleware(Observing, observer=metrics)
    return app


async def _check(db: Database) -> None:
    if not await db.finds_non_ascii_words():
        log.warning(
            "slow_search_of_non_ascii_words",
            reason="the database is not UTF-8 or its LC_CTYPE is C: create it with LC_CTYPE C.UTF-8",
        )


def _upstream_settings(settings: Settings) -> UpstreamSettings:
    key = settings.upstream_api_key
    return UpstreamSettings(
        url=settings.upstream_url,
        api_key=None if key is None else key.get_secret_value(),
        model=settings.upstream_model,
        models=None if settings.upstream_models is None else frozenset(settings.upstream_models),
        connect_timeout=settings.upstream_connect_timeout_seconds,
        first_byte_timeout=settings.upstream_first_byte_timeout_seconds,
        idle_timeout=settings.upstream_idle_timeout_seconds,
    )


def _memories(db: Database, settings: Settings) -> Memories:
    return Memories(
        db=db,
        limits=settings.memory_limits,
        keeping=Keeping(
            max_versions=settings.memory_max_versions,
            days=settings.memory_version_days,
            max_bytes=settings.memory_max_history_bytes,
        ),
    )


def _chat_settings(settings: Settings) -> ChatSettings:
    return ChatSettings(
        default_user_id=settings.chat_default_user_id,
        default_ttl_seconds=settings.default_ttl_seconds,
        allow_system_messages=settings.allow_system_messages,
        max_tool_rounds=settings.chat_max_tool_rounds,
        recall_page_size=settings.recall_page_size,
    )
