"""A request's prompt as the Thinker takes it: by the checkpoint's own tokenizer, chat template, audio preprocessor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.tokenizer import Tokenizer
from omnizmq.workers.engines.qwen3_omni.hearing import TOKENS_PER_S, Features, Hearing


@dataclass(frozen=True, slots=True)
class Asked:
    """`sounds`: what stands for the audio tokens among `ids`."""

    ids: list[int]
    sounds: Features | None = None


class Prompts:
    """Raises `LaunchError` when the checkpoint's tokenizer or preprocessor cannot be used."""

    def __init__(self, checkpoint: Checkpoint, config: Any, most: int) -> None:
        """`config`: the Thinker's; `most`: tokens that a prompt may have."""
        self._tokenizer = Tokenizer(checkpoint, config.text_config.vocab_size, most)
        self._tokenizer.template = self._tokenizer.template or _template(checkpoint)
        self._audio: int = config.audio_token_id
        self._others = {config.image_token_id: "image", config.video_token_id: "video"}
        self._longest_s = most / TOKENS_PER_S
        self._hearing = Hearing(checkpoint, config.audio_config)
        self.vocabulary = self._tokenizer.vocabulary
        self._ids(Prompt("Hello.", None, None))  # a template that does not work is found now

    def read(self, prompt: Prompt | None) -> Asked:
        """Raises `InvalidRequestError`."""
        ids, files = self._ids(prompt), _sounds(prompt)
        for token, kind in self._others.items():
            if token in ids:
                raise InvalidRequestError(f"this thinker takes text and sound: the prompt has a placeholder of {kind}s")
        places = ids.count(self._audio)
        if places != len(files):
            raise InvalidRequestError(f"the prompt has {places} placeholders of sounds, and {len(files)} sounds")
        if not files:
            return Asked(ids)
        features = self._hearing.features(files, self._longest_s)
        counts = iter(features.tokens)
        spread = [next(counts) if token == self._audio else 1 for token in ids]
        return Asked([token for token, count in zip(ids, spread, strict=True) for _ in range(count)], features)

    def answer(self, text: str) -> list[int]:
        """A text that is to be the answer. Raises `InvalidRequestError`."""
        return self._tokenizer.plain(text, "the text to say")

    def _ids(self, prompt: Prompt | None) -> list[int]:
        """With one audio token a sound."""
        if prompt is None:
            raise InvalidRequestError("a thinker needs a prompt: it has no input edges")
        if prompt.token_ids is not None:
            return self._tokenizer.checked(prompt.token_ids)
        if prompt.messages is not None:
            turns = [{"role": message.role, "content": _content(message)} for message in prompt.messages]
        else:
            turns = [{"role": "user", "content": prompt.text or ""}]
        return self._tokenizer.ids(turns, add_generation_prompt=True)


def _template(checkpoint: Checkpoint) -> str:
    """Of the checkpoint itself, in either of the two files in which one may come."""
    written = checkpoint.path / "chat_template.jinja"
    if written.exists():
        return written.read_text(encoding="utf-8")
    template = checkpoint.json("chat_template.json").get("chat_template")
    if not isinstance(template, str):
        raise LaunchError(f"{checkpoint.path}/chat_template.json has no chat_template")
    return template


def _sounds(prompt: Prompt | None) -> list[bytes]:
    messages = (prompt.messages if prompt is not None else None) or []
    return [part.data for message in messages for part in message.content if isinstance(part, AudioPart)]


def _content(message: Message) -> str | list[dict[str, str]]:
    """In the form of chat templates, where a sound is a part without its content."""
    parts = []
    for part in message.content:
        if isinstance(part, ImagePart):
            # The library's image processor needs torchvision, which there is not beside every build of torch.
            raise InvalidRequestError("this thinker takes text and sound: a message has an image part")
        parts.append({"type": "audio"} if isinstance(part, AudioPart) else {"type": "text", "text": part.text})
    return "".join(part.get("text", "") for part in parts) if all("text" in part for part in parts) else parts
