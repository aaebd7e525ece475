"""The OpenAPI document is kept, complete and fit for generated clients."""

import re
from pathlib import Path

import pytest
import yaml

from app.api import openapi
from app.api.gate import OPEN_PATHS
from app.api.openapi_corrections import TAGS, schemas_of
from app.config import Settings
from app.main import create_app

KEPT = Path(__file__).parents[2] / "openapi.yaml"
BINARY = {"application/zip", "application/octet-stream"}
OPENAI_PATHS = {"/v1/chat/completions", "/v1/models"}
# A part that is told by its name alone; an index signature, a list of anything.
INLINE = {"string", "integer", "number", "boolean", "null", "array"}


@pytest.fixture(scope="module")
def app():
    return create_app(Settings(_env_file=None), database_url="postgresql://localhost/none")


@pytest.fixture(scope="module")
def document(app):
    return app.openapi()


def operations(document):
    for path, methods in document["paths"].items():
        yield from ((path, method, operation) for method, operation in methods.items())


def each(document):
    """Every operation by its id."""
    return {operation["operationId"]: operation for _, _, operation in operations(document)}


def answers(document, operation):
    """The responses of an operation, looked up where they are shared."""
    for status, response in operation["responses"].items():
        if reference := response.get("$ref"):
            response = document["components"]["responses"][reference.rpartition("/")[2]]  # noqa: PLW2901
        yield int(status), response


def test_the_kept_document_is_the_served_one(app):
    assert KEPT.read_text() == openapi.as_yaml(app), "run `make openapi` and commit openapi.yaml"


def test_operation_ids_are_clean(document):
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+)*", name)] == [], (
        "name the handler in snake_case"
    )
    assert len(names) == len(set(names)), "two handlers have one name"


def test_every_operation_has_a_summary_a_description_and_a_tag(document):
    for name, operation in each(document).items():
        assert operation["summary"], f"{name}: give the handler a docstring; its first line is the summary"
        assert len(operation["summary"]) < 80, (
            f"{name}: the first line of the docstring is the summary; make it short"
        )
        assert operation["description"], f"{name}: give its docstring a second paragraph, which is the description"
        assert operation["tags"], f"{name}: give its router tags"
        assert TAGS.keys() >= set(operation["tags"]), f"{name}: describe its tag in TAGS of openapi_corrections.py"
    used = {tag for operation in each(document).values() for tag in operation["tags"]}
    assert used == TAGS.keys(), "TAGS of openapi_corrections.py describes a tag that nothing has"


def test_every_parameter_is_described_and_has_no_null(document):
    for name, operation in each(document).items():
        for parameter in operation.get("parameters", ()):
            place = f"{name}: its parameter {parameter['name']}"
            assert parameter.get("description"), f"{place} needs a description"
            assert {"type": "null"} not in parameter["schema"].get("anyOf", ()), f"{place} cannot be null"


def test_every_schema_and_field_is_described(document):
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("description"), f"{name}: give the class a docstring"
        for field, one in schema.get("properties", {}).items():
            # Where a field says the same as the class that it refers to, the framework says it once.
            assert one.get("description") or "$ref" in one, f"{name}.{field}: give it Field(description=…)"


def test_schemas_have_names_that_read_well(document):
    for name in document["components"]["schemas"]:
        assert re.fullmatch(r"([A-Z][a-z]+|AI)+", name), f"{name}: give it a name in NAMES of openapi_corrections.py"
        assert not name.endswith(("Body", "Out", "Response")), f"{name}: name it in NAMES of openapi_corrections.py"
        assert not name.startswith(("HTTP", "Body")), f"{name}: leave it out in openapi.py"


def test_objects_and_choices_have_names(document):
    named = list(map(id, document["components"]["schemas"].values()))
    for schema in schemas_of(document):
        assert "title" not in schema, schema
        if id(schema) in named or "$ref" in schema:
            continue
        assert "enum" not in schema, f"{schema['enum']}: name these in ENUMS of openapi_corrections.py"
        kinds = schema.get("type", ())
        kinds = {kinds} if isinstance(kinds, str) else set(kinds)
        assert kinds <= INLINE, f"{schema}: give it a class, or a name in OBJECTS of openapi_corrections.py"


def test_references_lead_somewhere(document):
    def follow(node):
        if isinstance(node, dict):
            if isinstance(reference := node.get("$ref"), str):
                _, *path = reference.split("/")
                target = document
                for step in path:
                    assert step in target, reference
                    target = target[step]
            for inner in node.values():
                follow(inner)
        elif isinstance(node, list):
            for inner in node:
                follow(inner)

    follow(document)
    text = yaml.safe_dump(document)
    unused = [name for name in document["components"]["schemas"] if f"/schemas/{name}'" not in text]
    assert unused == []


def test_every_route_but_the_open_ones_needs_a_credential(document):
    for path, _, operation in operations(document):
        assert bool(operation["security"]) is (path not in OPEN_PATHS)


def test_every_error_is_a_problem_document_but_where_openais_sdks_call(document):
    for path, _, operation in operations(document):
        is_openai = path in OPENAI_PATHS
        expected = "application/json" if is_openai else "application/problem+json"
        for status, response in answers(document, operation):
            if status >= 400:
                assert set(response["content"]) == {expected}
                name = "OpenAIError" if is_openai else "Problem"
                assert response["content"][expected]["schema"] == {"$ref": f"#/components/schemas/{name}"}


def test_every_error_that_applies_is_there(document):
    for path, method, operation in operations(document):
        if not path.startswith("/v1/"):
            continue
        statuses = set(map(int, operation["responses"]))
        name = operation["operationId"]
        assert statuses >= {401, 413, 422, 429, 503}, f"{name}: its router needs responses=COMMON"
        if "{session_id}" in path and method != "put" and "search" not in path:
            assert 404 in statuses, f"{name}: it needs problems(404)"
        if set(operation.get("requestBody", {}).get("content", ())) == {"application/json"} and "tools" not in path:
            assert 415 in statuses, f"{name}: it needs problems(415)"
        if any(parameter["name"] in {"If-Match", "If-None-Match"} for parameter in operation.get("parameters", ())):
            assert 412 in statuses, f"{name}: it needs problems(412)"


def test_every_error_is_shared_or_says_something_of_its_own(document):
    for name, operation in each(document).items():
        for status, response in operation["responses"].items():
            if int(status) >= 400 and "$ref" not in response:
                shared = [one["description"] for one in document["components"]["responses"].values()]
                assert response["description"] not in shared, f"{name}: {status} is shared already"
                media = next(iter(response["content"].values()))
                assert media.get("example"), f"{name}: describe {status} in ERRORS of openapi_answers.py"


def test_every_operation_has_an_example_of_request_and_answer(document):
    for name, operation in each(document).items():
        bodies = [operation.get("requestBody", {})]
        bodies += [answer for status, answer in answers(document, operation) if status < 400]
        for body in bodies:
            for kind, media in body.get("content", {}).items():
                assert kind in BINARY or "example" in media, (
                    f"{name}: add an example to EXAMPLES of app/api/examples.py"
                )


def test_the_document_survives_yaml(app):
    text = openapi.as_yaml(app)
    assert yaml.safe_load(text) == app.openapi()
    assert re.search(r"[:-] [&*]id\d", text) is None, "an anchor: a part is used twice; copy it"


async def test_it_is_served(shared_client, app):
    assert (await shared_client.get("/openapi.json")).json() == app.openapi()
    assert (await shared_client.get("/docs")).status_code == 200
