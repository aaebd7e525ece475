"""The OpenAPI document is kept, complete and fit for generated clients."""

from pathlib import Path

import pytest
import yaml

from app.api import openapi
from app.api.middleware import OPEN_PATHS
from app.config import Settings
from app.main import create_app

KEPT = Path(__file__).parents[2] / "openapi.yaml"


@pytest.fixture(scope="module")
def app():
    return create_app(Settings(_env_file=None), database_url="postgresql://localhost/none")


def operations(app):
    for path, methods in app.openapi()["paths"].items():
        yield from ((path, method, operation) for method, operation in methods.items())


def test_the_kept_document_is_the_served_one(app):
    assert KEPT.read_text() == openapi.as_yaml(app), "run `make openapi` and commit openapi.yaml"


def test_operation_ids_are_clean_and_every_operation_is_described(app):
    seen = set()
    for path, method, operation in operations(app):
        name = operation["operationId"]
        assert name.replace("_", "").isalpha(), name
        assert name not in seen
        seen.add(name)
        assert operation.get("description"), (method, path)


def test_every_route_but_the_open_ones_needs_a_credential(app):
    for path, _, operation in operations(app):
        assert ("security" in operation) is (path not in OPEN_PATHS)


def test_every_error_is_a_problem_document_but_where_openais_sdks_call(app):
    for path, _, operation in operations(app):
        expected = (
            "application/json" if path in {"/v1/chat/completions", "/v1/models"} else "application/problem+json"
        )
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert set(response["content"]) == {expected}


def test_the_document_survives_yaml(app):
    assert yaml.safe_load(openapi.as_yaml(app)) == app.openapi()


async def test_it_is_served(shared_client, app):
    assert (await shared_client.get("/openapi.json")).json() == app.openapi()
    assert (await shared_client.get("/docs")).status_code == 200
