"""Chats: messages with roles, as the model's own chat template writes them in one text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from attnflow.errors import TextError
from attnflow.fields import Segment

# Stands for the content of a message where it is looked up what a template puts around it. Letters
# and digits alone, which no template trims or escapes.
_MARK: Final = "attnflowQ{}Xmessage"
_MARKS: Final = re.compile(_MARK.format(r"(\d+)"))


class Chat(NamedTuple):
    """A chat as one text.

    Attributes:
        text: What the chat template wrote, up to where the model answers.
        segments: The content of each message in it, named by its role.
    """

    text: str
    segments: tuple[Segment, ...]

    def is_markup(self, start: int, end: int) -> bool:
        """Return whether a stretch of the text is the template's own, and not a message's.

        Example:
            >>> chat = Chat("<user>keys<end>", (Segment("user", 6, 10),))
            >>> chat.is_markup(0, 6), chat.is_markup(5, 8)
            (True, False)
        """
        return not any(one.start < end and start < one.end for one in self.segments)


def is_chat(item: Any) -> bool:
    """Return whether an input is a list of messages.

    Example:
        >>> is_chat([{"role": "user", "content": "Hello"}]), is_chat(["Hello"])
        (True, False)
    """
    return isinstance(item, list) and bool(item) and all(isinstance(one, Mapping) for one in item)


def rendered(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> Chat:
    """Write messages as one text, by the tokenizer's chat template.

    Where each message stands is found by rendering the chat once more with a mark in place of each
    content. What the template makes of a message, such as trimming it, makes no difference.

    Args:
        messages: Dictionaries with "role" and "content", both texts.
        tokenizer: The tokenizer.

    Raises:
        TextError: If a message is malformed, or the tokenizer has no template, or the template
            refuses the messages.
    """
    for index, message in enumerate(messages):
        for name in ("role", "content"):
            value = message.get(name)
            if not isinstance(value, str) or not value.strip():
                found = "missing" if name not in message else repr(value)
                raise TextError(
                    f"message {index} of the chat: {name!r} is {found}; expected a text, as in "
                    '{"role": "user", "content": "Hello"}'
                )
    if not getattr(tokenizer, "chat_template", None):
        raise TextError(
            "the input is a chat, and the model's tokenizer has no chat template; give the prompt "
            "as one text"
        )
    text = _written(messages, tokenizer)
    marked = [{**one, "content": _MARK.format(i)} for i, one in enumerate(messages)]
    parts = _MARKS.split(_written(marked, tokenizer))
    around, numbers = parts[::2], [int(number) for number in parts[1::2]]
    return Chat(text, _placed(text, around, numbers, messages))


def _written(messages: Sequence[Mapping[str, Any]], tokenizer: Any) -> str:
    from jinja2 import TemplateError

    try:
        text: str = tokenizer.apply_chat_template(
            list(messages), tokenize=False, add_generation_prompt=True
        )
    except (TemplateError, TypeError, KeyError, ValueError) as error:
        roles = ", ".join(str(message["role"]) for message in messages)
        raise TextError(
            f"the model's chat template refuses messages of the roles {roles}: {error}"
        ) from error
    return text


def _placed(
    text: str, around: list[str], numbers: list[int], messages: Sequence[Mapping[str, Any]]
) -> tuple[Segment, ...]:
    """Return where the contents of messages stand in a text, given what stands around them."""
    contents = [str(message["content"]) for message in messages]
    found: list[str] | None = None
    for tried in (contents, [content.strip() for content in contents]):
        chosen = [tried[number] for number in numbers]
        if text == around[0] + "".join(map("".join, zip(chosen, around[1:], strict=True))):
            found = chosen
    if found is None:
        # The template changes what a message says, for example leaves out a part of it.
        match = re.fullmatch("(.*?)".join(map(re.escape, around)), text, re.DOTALL)
        if match is None:
            raise TextError(
                "the model's chat template changes the messages in a way that attnflow cannot "
                "follow; give the prompt as one text"
            )
        found = list(match.groups())
    segments, cursor = [], 0
    for before, number, content in zip(around, numbers, found, strict=False):
        cursor += len(before)
        if content:
            role = str(messages[number]["role"])
            segments.append(Segment(role, cursor, cursor + len(content)))
        cursor += len(content)
    return tuple(segments)
