"""What a model sends to a memory tool under wrong names, of wrong kinds, or not at all."""

import pytest

from app.domain.errors import MemoryRefused
from app.domain.memory_arguments import Arguments, decoded
from app.domain.memory_definitions import MEMORY_TOOLS

NAMES = {tool.name: list(tool.schema["properties"]) for tool in MEMORY_TOOLS}
ALL = sorted({name for names in NAMES.values() for name in names})


def snake(name):
    return Arguments({}, [], snake=True).spelled(name)


def refusal(given, names, name, *, as_snake=False, read="text"):
    with pytest.raises(MemoryRefused) as refused:
        getattr(Arguments(given, names, snake=as_snake), read)(name)
    return str(refused.value)


@pytest.mark.parametrize("as_snake", [False, True], ids=["camel", "snake"])
@pytest.mark.parametrize(("tool", "name"), [(tool, name) for tool, names in NAMES.items() for name in names])
def test_a_name_spelled_otherwise_is_told_the_right_one(tool, name, as_snake):
    right = snake(name) if as_snake else name
    for wrong in {name, snake(name), snake(name).replace("_", "-"), name.upper()} - {right}:
        told = refusal({wrong: "x"}, NAMES[tool], name, as_snake=as_snake)
        assert f"There is no argument {wrong}: what you sent as it is called {right}." in told


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("replacement", "newStr"),
        ("new_string", "newStr"),
        ("newString", "newStr"),
        ("old_string", "oldStr"),
        ("content", "fileText"),
        ("line", "insertLine"),
        ("new_str", "insertText"),
        ("file_path", "path"),
        ("lines", "viewRange"),
        ("path", "oldPath"),
        ("destination", "newPath"),
    ],
)
def test_a_name_that_models_use_instead_is_told_the_right_one(wrong, name):
    names = next(names for names in NAMES.values() if name in names and wrong not in names)
    read = {"insertLine": "number", "viewRange": "range"}.get(name, "text")
    assert f"called {name}." in refusal({wrong: "x"}, names, name, read=read)


@pytest.mark.parametrize("given", [{}, {"newStr": None}, {"newStr": 5}, {"newStr": ["x"]}, {"unlike": "x"}])
def test_an_argument_that_is_missing_or_no_string_is_named(given):
    assert refusal(given, NAMES["MemoryStrReplace"], "newStr").startswith("newStr is ")


def test_an_argument_under_both_names_is_read_from_its_own():
    assert Arguments({"new_str": "a", "newStr": "b"}, NAMES["MemoryStrReplace"]).text("newStr") == "b"
    assert Arguments({"path": "p", "file": "x"}, NAMES["MemoryView"]).range("viewRange") is None


def test_what_newstr_is_required_for_is_in_the_definition():
    required = {tool.name: tool.schema["required"] for tool in MEMORY_TOOLS}
    assert required["MemoryStrReplace"] == ["path", "oldStr", "newStr"]
    assert required["MemoryView"] == ["path"]
    assert all(required[name] == NAMES[name] for name in required if name != "MemoryView")


@pytest.mark.parametrize("value", [3, "3", " 3 ", "3.0"])
def test_a_whole_number_may_be_written_otherwise(value):
    assert Arguments({"insertLine": value}, ["insertLine"]).number("insertLine") == 3
    assert Arguments(decoded('{"insertLine": 3.00}'), ["insertLine"]).number("insertLine") == 3


@pytest.mark.parametrize(
    "value", ["true", "null", "[1]", '"one"', "1.5", "1e400", "1e-400", "9" * 4_000, '"9999999999999999999999"', "{}"]
)
def test_no_other_value_is_a_number(value):
    try:
        given = decoded(f'{{"insertLine": {value}}}')
    except MemoryRefused:
        return  # No such number can be read at all.
    assert "insertLine is " in refusal(given, ["insertLine"], "insertLine", read="number")


@pytest.mark.parametrize("text", ["", "[]", '"{}"', "{", "{'path': 'a'}", "\ud800", "[" * 100_000, '{"a": NaN}'])
def test_what_is_no_object_is_told_what_one_looks_like(text):
    with pytest.raises(MemoryRefused, match=r'such as \{"path": "notes\.md"\}'):
        decoded(text)
