"""The examples of the OpenAPI document: as the schemas say, and played in their order, what the service does."""

import io
import zipfile

import jsonschema_rs
import pytest

from app.api.examples import EXAMPLES
from tests.conftest import serving
from tests.upstream import Answer, scripted_upstream


@pytest.fixture(scope="module")
async def service(shared_database_url):
    with scripted_upstream() as upstream:
        upstream.reset(*[Answer("You decided to use PostgreSQL.")] * 2)
        async with serving(shared_database_url, upstream_url=upstream.url, token_secret=("x" * 32,)) as http:
            yield http


@pytest.fixture(scope="module")
async def document(service):
    return (await service.get("/openapi.json")).json()


def found(document, name):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if operation["operationId"] == name:
                return path, method, operation
    raise AssertionError(f"{name} is in EXAMPLES of app/api/examples.py, but no operation")


def check(document, schema, value):
    whole = {**schema, "components": document["components"]}
    jsonschema_rs.validator_for(whole, validate_formats=True).validate(value)


def test_every_example_is_as_its_schema_says(document):
    for methods in document["paths"].values():
        for operation in methods.values():
            bodies = [operation.get("requestBody", {}), *operation["responses"].values()]
            for body in [*bodies, *document["components"]["responses"].values()]:
                for media in body.get("content", {}).values():
                    if "example" in media:
                        check(document, media["schema"], media["example"])


@pytest.mark.parametrize("name", EXAMPLES)
async def test_an_example_is_what_the_service_does(service, document, name):
    path, method, operation = found(document, name)
    request = {"params": {}, "headers": {}}
    for parameter in operation.get("parameters", ()):
        if parameter.get("required"):
            place = f"{name}: {parameter['name']}"
            assert "example" in parameter, f"{place} is required: add it to PARAMETERS of app/api/examples.py"
            value = parameter["example"]
            if parameter["in"] == "path":
                path = path.replace(f"{{{parameter['name']}}}", value)
            else:
                request["params"][parameter["name"]] = value
    request |= body_of(operation)
    response = await service.request(method, path, **request)
    assert response.is_success, response.text
    as_documented(document, operation, response, response.status_code)
    if "again" in EXAMPLES[name]:
        response = await service.request(method, path, **request)
        assert response.status_code == 200
        as_documented(document, operation, response, 200)
        assert response.json()["replayed"] == EXAMPLES[name]["again"]["replayed"]


def as_documented(document, operation, response, status):
    expected = operation["responses"][str(status)]
    assert ("etag" in response.headers) is ("ETag" in expected.get("headers", {})), "ETAGS of openapi_answers.py"
    for kind, media in expected.get("content", {}).items():
        if kind == "application/json":
            check(document, media["schema"], response.json())
            assert shape(response.json()) >= shape(media["example"])
        elif kind == "text/plain":
            assert response.text.splitlines()[0] == media["example"].splitlines()[0]


def body_of(operation):
    for kind, media in operation.get("requestBody", {}).get("content", {}).items():
        headers = {"Content-Type": kind}
        match kind:
            case "application/json":
                return {"json": media["example"]}
            case "application/zip":
                return {"content": archive(), "headers": headers}
            case _:
                return {"content": media["example"], "headers": headers}
    return {}


def archive():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archived:
        archived.writestr("user/preferences.md", "Prefers short answers, in French.\n")
    return packed.getvalue()


def shape(value, place=""):
    """The fields of an answer, wherever they are."""
    if isinstance(value, dict):
        return {f"{place}.{name}" for name in value} | {
            inner for name, one in value.items() for inner in shape(one, f"{place}.{name}")
        }
    if isinstance(value, list):
        return {inner for one in value[:1] for inner in shape(one, f"{place}[]")}
    return set()
