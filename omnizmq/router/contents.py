"""Prompts and outputs as facts of a trace, where they were asked for (`router.trace_contents`, T1). Pure.

Of text the first characters, of anything else what it is and how large.
"""

from __future__ import annotations

from omnizmq import protocol as wire

TEXT_CHARS = 4096
"""So much of a text is kept; the trace's store cuts there too."""


def of_prompt(prompt: wire.Prompt) -> dict[str, wire.Value]:
    """The last user's words, or the text, or how many tokens there were."""
    if prompt.text is not None:
        return _text(prompt.text)
    if prompt.token_ids is not None:
        return {"kind": "tokens", "tokens": len(prompt.token_ids)}
    words = [f"{message.role}: {_words(message)}" for message in prompt.messages or ()]
    return _text("\n".join(words)) | {"kind": "messages"}


def of_output(content: wire.Content) -> dict[str, wire.Value]:
    if isinstance(content, wire.Text):
        return _text(content.text)
    return {"kind": "audio", "bytes": len(content.data), "sample_rate": content.sample_rate}


def _words(message: wire.Message) -> str:
    return " ".join(_part(part) for part in message.content)


def _part(part: wire.TextPart | wire.AudioPart | wire.ImagePart) -> str:
    if isinstance(part, wire.TextPart):
        return part.text
    kind = "audio" if isinstance(part, wire.AudioPart) else "image"
    return f"[{kind}, {len(part.data)} bytes]"


def _text(text: str) -> dict[str, wire.Value]:
    return {"kind": "text", "text": text[:TEXT_CHARS], "chars": len(text)}
