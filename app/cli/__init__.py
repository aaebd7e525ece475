"""The command `turnkeeper`."""

import asyncio
import sys
from typing import Annotated

import typer
from rich.console import Console

from app.api import openapi
from app.cli import demo, keys, serve, transfer
from app.cli.database import open_database
from app.config import Settings, SettingsError, load_settings
from app.domain.errors import DatabaseUnavailable
from app.main import create_app
from app.storage.addresses import DatabaseUnusable
from app.storage.embedded_host import EmbeddedPostgresError
from app.storage.migrations import MigrationError
from app.telemetry import configure_logs

app = typer.Typer(
    name="turnkeeper",
    help="Memory as a service for LLM agents, on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("import")(transfer.import_files)
app.command("export")(transfer.export)
app.add_typer(keys.commands)


@app.command()
def migrate() -> None:
    """Bring the database to the newest revision."""

    async def run() -> None:
        async with open_database(load_settings()):
            Console(stderr=True).print("The database is at the newest revision.")

    asyncio.run(run())


@app.command("openapi")
def print_openapi(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON instead of YAML.")] = False,
) -> None:
    """Print the OpenAPI document."""
    service = create_app(Settings(), database_url="postgresql://localhost/none")
    typer.echo(openapi.as_json(service) if as_json else openapi.as_yaml(service), nl=False)


def main() -> None:
    """Run the command; what an operator can put right is a message, not a traceback."""
    configure_logs()
    try:
        app()
    except (SettingsError, EmbeddedPostgresError, DatabaseUnusable, MigrationError) as error:
        _fail(str(error))
    except DatabaseUnavailable as error:
        _fail(f"{error} ({type(error.__cause__).__name__}: {error.__cause__})")


def _fail(message: str) -> None:
    Console(stderr=True).print(f"turnkeeper: {message}", style="red", markup=False, soft_wrap=True)
    sys.exit(1)
