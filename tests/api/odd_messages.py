"""Messages that are legal, nearly legal and not at all, as JSON values."""

from hypothesis import strategies as st

texts = st.sampled_from(["", "Hello.", "call-1"])
odd = st.sampled_from([None, 7, True, [], {}, ["a"], {"a": 1}])
some = texts | odd
roles = st.sampled_from(["user", "assistant", "system", "developer", "tool", "function", "", None, 7])


def objects(**fields):
    return st.fixed_dictionaries({}, optional=fields)


parts = objects(
    type=st.sampled_from(["text", "image_url", "input_audio", None]), text=some, image_url=some | objects(url=some)
)
calls = objects(
    id=some,
    type=st.sampled_from(["function", "custom", "other", None, 7]),
    function=some | objects(name=some, arguments=some),
    custom=some | objects(name=some, input=some),
)
messages = objects(
    role=roles,
    content=some | st.lists(parts | odd, max_size=2),
    name=some,
    tool_call_id=some,
    tool_calls=st.none() | st.lists(calls | odd, max_size=2) | some,
    refusal=some,
)


def legal(required, **optional):
    """An object with these fields, and with some that no schema names."""
    extras = {"cache_control": odd, "reasoning": some, "refusal": some}
    return st.fixed_dictionaries(required, optional={**extras, **optional})


legal_parts = st.one_of(
    legal({"type": st.just("text"), "text": texts}, image_url=some),
    legal({"type": st.just("image_url"), "image_url": legal({"url": texts})}, text=some),
    legal({"type": st.sampled_from(["input_audio", "file", ""])}, text=some, image_url=some),
)
legal_calls = st.one_of(
    legal(
        {"id": st.just(""), "function": legal({"name": st.just("note"), "arguments": texts})},
        type=st.sampled_from(["function", "other", None, 7]),
        custom=some,
    ),
    legal(
        {"id": texts, "type": st.just("custom"), "custom": legal({"name": st.just("note"), "input": texts})},
        function=some,
    ),
)
names = {"name": st.none() | texts}


def spoken(role, **required):
    content = texts | st.lists(legal_parts, min_size=1, max_size=2)
    return legal({"role": st.just(role), "content": content, **required}, **names, tool_calls=st.none() | st.just([]))


legal_messages = st.one_of(
    *map(spoken, ("user", "system", "developer")),
    spoken("tool", tool_call_id=texts),
    legal(
        {"role": st.just("assistant")},
        **names,
        content=st.none() | texts | st.lists(legal_parts, max_size=2),
        tool_calls=st.none() | st.lists(legal_calls, max_size=1),
        tool_call_id=some,
    ),
)
