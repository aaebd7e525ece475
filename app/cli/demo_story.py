"""What the demo tells: three conversations of Mara, who runs a bakery, with an assistant, over two months."""

from typing import Any

USER = "mara"


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def _result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _user(content: str) -> dict[str, Any]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


# Session id, the instant it began, and its messages; each is said half a minute after the one before.
SESSIONS: tuple[tuple[str, str, list[dict[str, Any]]], ...] = (
    (
        "mara-march",
        "2026-03-02T08:15:00+00:00",
        [
            _user("Good morning! I want to sell our rye bread online. Where do I start?"),
            _assistant("Start small: one product, one pick-up point, orders until the evening before."),
            _user("How many loaves did we sell last week?"),
            _call("call_1", "sales_report", '{"product": "rye", "weeks": 1}'),
            _result("call_1", "rye: 214 loaves, 31 unsold"),
            _assistant("214 rye loaves, and 31 were left over. Pre-orders would bring the leftovers down."),
            _user("We decided: pre-orders close at 18:00, pick-up from 7:00 at the side door."),
            _assistant("Noted: orders until 18:00, pick-up from 7:00, side door."),
        ],
    ),
    (
        "mara-april",
        "2026-04-11T19:40:00+00:00",
        [
            _user("The bank asks for a name for the web shop. I am thinking of Crumb & Crust."),
            _assistant("Crumb & Crust is short and says bread. Is the name free?"),
            _user("Check crumbandcrust.example for me, and crustundkrume.example."),
            {
                "role": "assistant",
                "content": "I look at both.",
                "tool_calls": [
                    {
                        "id": "call_2",
                        "type": "function",
                        "function": {"name": "whois", "arguments": '{"name": "crumbandcrust.example"}'},
                    },
                    {
                        "id": "call_3",
                        "type": "function",
                        "function": {"name": "whois", "arguments": '{"name": "crustundkrume.example"}'},
                    },
                ],
            },
            _result("call_2", "taken since 2019"),
            _result("call_3", "free"),
            _assistant("crumbandcrust.example is taken; crustundkrume.example is free."),
            _user("Then Kruste & Krume it is. Remember the spelling: KRÜMEL is the cat, not the shop."),
            _assistant("Kruste & Krume for the shop, Krümel for the cat."),
        ],
    ),
    (
        "mara-may",
        "2026-05-04T07:05:00+00:00",
        [
            _user("Actually, let's go with 17:00 for the pre-orders. 18:00 was too late for the dough."),
            _assistant("Changed: pre-orders close at 17:00."),
            _user("And write the sign for the side door, please."),
            _assistant("Kruste & Krume: pick up your pre-order here from 7:00. Please ring."),
        ],
    ),
)

# What she then says in a chat, through the service; the deposit is what the summary will leave out.
CHAT = (
    "Let us plan the opening of the shop on 12 June.",
    "40 guests. What do we offer them?",
    "My sister Ilse can play the accordion.",
    "I paid the deposit for the tables, 75 euros, receipt 2231.",
    "And if the weather is bad?",
)
LATER = "What was the number of that receipt?"

# And what she wants remembered for longer than a conversation.
FACT = "Please remember: I eat no nuts."
NEEDS_THE_FACT = "What cake shall I bake for myself?"
CORRECTION = "It is only hazelnuts that I do not eat. Please correct that."
