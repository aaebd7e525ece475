"""The oracle for prompts: what it finds, and what it lets pass."""

import pytest

from tests.prompt_rules import faults_of_prompt, require_valid

SYSTEM = {"role": "system", "content": "Be kind."}
USER = {"role": "user", "content": "hello"}
REPLY = {"role": "assistant", "content": "Hi."}


def call(id_="c1", name="f", arguments="{}"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*ids):
    return {"role": "assistant", "content": None, "tool_calls": [call(id_) for id_ in ids]}


def result(id_="c1"):
    return {"role": "tool", "tool_call_id": id_, "content": "done"}


def tool(name="f"):
    return {"type": "function", "function": {"name": name, "parameters": {}}}


def having(*messages, **fields):
    return {"model": "m", "messages": list(messages), **fields}


def with_call(entry):
    return having(USER, {"role": "assistant", "content": None, "tool_calls": [entry]}, result())


GOOD = {
    "a question": having(USER),
    "a blank question": having({"role": "user", "content": "  "}),
    "an empty question": having({"role": "user", "content": ""}),
    "an image": having({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}),
    "several system messages": having(SYSTEM, {"role": "developer", "content": "Be brief."}, USER, REPLY, USER),
    "a prefill": having(USER, {"role": "assistant", "content": "Once upon"}),
    "a refusal": having(USER, {"role": "assistant", "content": None, "refusal": "No."}, USER),
    "a null refusal": having(USER, {**REPLY, "refusal": None}, USER),
    "a refusal part": having(USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}),
    "a name": having({**USER, "name": "alice"}),
    "a call and its result": having(USER, calling("c1"), result("c1"), REPLY, USER),
    "a call with text": having(USER, {**calling("c1"), "content": "Let me see."}, result("c1")),
    "results in another order": having(USER, calling("c1", "c2"), result("c2"), result("c1")),
    "an id again in a later message": having(USER, calling("c1"), result("c1"), calling("c1"), result("c1")),
    "blank ids": having(USER, calling("", ""), result(""), result("")),
    "blank ids of several kinds": having(USER, calling("", " ", "c1"), result(""), result("c1"), result("")),
    "an empty result": having(USER, calling("c1"), {**result("c1"), "content": ""}),
    "a custom call": with_call({"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "SELECT"}}),
    "reasoning in the current turn": having(USER, {**calling("c1"), "reasoning_content": "Hm."}, result("c1")),
    "tools": having(USER, tools=[tool("f"), tool("g")], tool_choice="auto"),
    "no choice of no tools": having(USER, tools=[], tool_choice="none"),
    "the same text from user and system": having(SYSTEM, {"role": "user", "content": "Be kind."}),
}

BAD = [
    ({"model": "m"}, "The messages are empty."),
    (having(), "The messages are empty."),
    (having({"role": "function", "content": "x"}), "Message 0 has the role 'function'"),
    (having(USER, "hello"), "Message 1 has the role None"),
    (having(USER, SYSTEM), "Message 1 (system) stands behind"),
    (having(SYSTEM, REPLY, {"role": "developer", "content": "x"}), "Message 2 (developer) stands behind"),
    (having(SYSTEM, SYSTEM, USER), "Message 1 (system) repeats the text of message 0."),
    (having(SYSTEM, {**SYSTEM, "role": "developer"}, USER), "Message 1 (developer) repeats"),
    (
        having(SYSTEM, {"role": "system", "content": [{"type": "text", "text": "Be kind."}]}),
        "Message 1 (system) repeats",
    ),
    (having({"role": "user"}), "Message 0 (user) has no content."),
    (having({"role": "user", "content": None}), "Message 0 (user) has no content."),
    (having({"role": "user", "content": []}), "Message 0 (user) has no content."),
    (having({"role": "user", "content": 7}), "neither a string nor parts: 7"),
    (having({"role": "user", "content": ["hello"]}), "illegal content part at 0: hello"),
    (having({"role": "user", "content": [{"type": "text"}]}), "illegal content part at 0"),
    (having({"role": "system", "content": [{"type": "image_url"}]}), "illegal content part at 0"),
    (having(USER, {"role": "assistant", "content": None}), "Message 1 (assistant) has no content."),
    (having(USER, {"role": "assistant", "content": [{"type": "image_url"}]}), "illegal content part at 0"),
    (having(USER, {**calling("c1"), "content": []}, result("c1")), "an empty list as its content"),
    (having(USER, calling("c1"), {"role": "tool", "tool_call_id": "c1"}), "Message 2 (tool) has no content."),
    (having(USER, calling("c1")), "Message 1 (assistant) has 1 unanswered call(s) with the id 'c1'."),
    (having(USER, calling("c1", "c2"), result("c1"), USER), "unanswered call(s) with the id 'c2'."),
    (having(USER, calling("c1"), USER, result("c1")), "unanswered call(s) with the id 'c1'."),
    (having(USER, calling("c1"), USER, result("c1")), "Message 3 (tool) follows no message with tool calls."),
    (having(USER, calling("c1"), result("c1"), result("c1")), "1 answer(s) too many for the id 'c1'."),
    (having(USER, calling("c1"), result("c1"), result("c2")), "Message 3 (tool) answers 'c2', which message 1"),
    (having(USER, calling("", ""), result("")), "1 unanswered call(s) with the id ''."),
    (having(USER, calling(""), result(""), result("")), "1 answer(s) too many for the id ''."),
    (having(USER, calling("", "c1"), result("c1"), result("c1")), "1 unanswered call(s) with the id ''."),
    (having(USER, result("c1")), "Message 1 (tool) follows no message with tool calls."),
    (having(result("c1"), USER), "Message 0 (tool) follows no message with tool calls."),
    (having(USER, REPLY, result("c1")), "Message 2 (tool) follows no message with tool calls."),
    (having(USER, calling("c1"), {"role": "tool", "content": "x"}), "does not say which call it answers"),
    (having(USER, {**REPLY, "tool_calls": []}), "has the tool calls []"),
    (having(USER, {**REPLY, "tool_calls": None}), "has the tool calls None"),
    (having(USER, calling("c1", "c1"), result("c1"), result("c1")), "2 tool calls with the id 'c1'"),
    (with_call("c1"), "malformed tool call at 0"),
    (with_call({**call(), "id": None}), "malformed tool call at 0"),
    (with_call({"id": "c1", "function": {"name": "f", "arguments": "{}"}}), "malformed tool call at 0"),
    (with_call({"id": "c1", "type": "function"}), "malformed tool call at 0"),
    (with_call(call(name=None)), "malformed tool call at 0"),
    (with_call(call(arguments={})), "malformed tool call at 0"),
    (
        having({**USER, "tool_calls": [call()]}),
        "Message 0 (user) has 'tool_calls', which belongs to the role assistant.",
    ),
    (having({**USER, "tool_call_id": "c1"}), "Message 0 (user) has 'tool_call_id', which belongs to the role tool."),
    (having({**USER, "refusal": "No."}), "Message 0 (user) has 'refusal', which belongs to the role assistant."),
    (having({**USER, "name": None}), "Message 0 (user) has the name None"),
    (having(USER, {**REPLY, "annotations": []}), "Message 1 (assistant) has the field 'annotations'."),
    (having(USER, {**REPLY, "function_call": None}), "Message 1 (assistant) has the field 'function_call'."),
    (having(USER, {**REPLY, "reasoning": "Hm."}, USER), "Message 1 (assistant) has 'reasoning' from before"),
    (having(USER, {**REPLY, "reasoning_details": []}, USER), "Message 1 (assistant) has 'reasoning_details' from"),
    (having({**USER, "reasoning_content": "Hm."}), "Message 0 (user) has 'reasoning_content', which belongs"),
    (having(USER, tools=[tool("f"), tool("g"), tool("f")]), "2 tools have the name 'f'."),
    (having(USER, tools=[{"type": "function"}]), "Tool 0 has no name."),
    (having(USER, tool_choice="auto"), "The tool choice is 'auto', but there are no tools."),
    (having(USER, tools=[], tool_choice="required"), "The tool choice is 'required', but there are no tools."),
    (having(USER, tool_choice={"type": "function", "function": {"name": "f"}}), "but there are no tools."),
]


@pytest.mark.parametrize("request_", GOOD.values(), ids=GOOD)
def test_what_providers_take_passes(request_):
    require_valid(request_)


@pytest.mark.parametrize(("request_", "sentence"), BAD)
def test_what_a_provider_refuses_is_found(request_, sentence):
    assert sentence in "\n".join(faults_of_prompt(request_))


def test_one_fault_is_one_sentence():
    assert len(faults_of_prompt(having(USER, calling("c1", "c2"), result("c1")))) == 1
    assert len(faults_of_prompt(having(USER, calling("c1"), result("c1"), result("c1"), USER))) == 1
    assert len(faults_of_prompt(having(USER, calling("c1", "c1"), result("c1"), result("c1")))) == 1


def test_further_fields_may_be_allowed():
    request = having(USER, {**REPLY, "annotations": []})
    assert faults_of_prompt(request)
    require_valid(request, also={"annotations"})


def test_a_failure_shows_the_messages():
    with pytest.raises(AssertionError) as failure:
        require_valid(having(SYSTEM, USER, calling("c1", "c2"), result("c1"), {"role": "user", "content": "x" * 500}))
    assert str(failure.value).splitlines()[1:] == [
        "Message 2 (assistant) has 1 unanswered call(s) with the id 'c2'.",
        "",
        "  0 system 'Be kind.'",
        "  1 user 'hello'",
        "  2 assistant None calls ['c1', 'c2']",
        "  3 tool 'done' answers 'c1'",
        f"  4 user '{'x' * 56}...",
    ]


@pytest.mark.parametrize(
    "message", [7, None, {}, {"role": "assistant", "tool_calls": 7}, {"role": "tool", "content": {}}]
)
def test_rubbish_is_a_fault_and_never_an_error(message):
    with pytest.raises(AssertionError, match="No provider takes this prompt"):
        require_valid(having(USER, message))
