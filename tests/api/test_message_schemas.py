"""The schemas of messages in the document allow what the service accepts, and refuse what it refuses."""

import jsonschema_rs
import pytest
from hypothesis import given, settings

from app.api.message_schemas import SCHEMAS
from app.domain.messages import faults_of
from tests.api.odd_messages import legal_messages, messages

VALIDATOR = jsonschema_rs.validator_for({"$ref": "#/components/schemas/Message", "components": {"schemas": SCHEMAS}})


@given(legal_messages)
def test_what_the_service_accepts_is_allowed(message):
    assert faults_of(message) == []
    VALIDATOR.validate(message)


@settings(max_examples=1_000)
@given(messages)
def test_what_it_accepts_of_odd_messages_is_allowed(message):
    if not faults_of(message):
        VALIDATOR.validate(message)


@settings(max_examples=1_000)
@given(messages)
def test_what_is_allowed_the_service_accepts(message):
    if VALIDATOR.is_valid(message):
        # What a schema cannot say: ids are unique in a message. What it does not: who may make calls.
        excused = [fault for fault in faults_of(message) if fault.loc[:1] == ("tool_calls",)]
        assert faults_of(message) == excused
        assert not excused or message["role"] != "assistant" or "twice" in excused[0].msg


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer", "tool"])
def test_a_plain_message_of_each_role_is_allowed(role):
    message = {"role": role, "content": "Hello.", "tool_call_id": "call-1", "anything": [None]}
    assert faults_of(message) == []
    VALIDATOR.validate(message)


def test_calls_of_both_kinds_are_allowed():
    function = {"id": "call-1", "type": "function", "function": {"name": "note", "arguments": "{}"}}
    custom = {"id": "", "type": "custom", "custom": {"name": "note", "input": "as it is"}}
    message = {"role": "assistant", "content": None, "tool_calls": [function, custom]}
    assert faults_of(message) == []
    VALIDATOR.validate(message)
