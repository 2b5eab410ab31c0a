"""A request's prompt as the Thinker takes it: by the checkpoint's own tokenizer, chat template and preprocessors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omnizmq.errors import InvalidRequestError, LaunchError
from omnizmq.protocol import AudioPart, ImagePart, Message, Prompt, TextPart
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.tokenizer import Tokenizer
from omnizmq.workers.engines.qwen3_omni.axes import Placed, placed
from omnizmq.workers.engines.qwen3_omni.hearing import Features, Hearing
from omnizmq.workers.engines.qwen3_omni.memory import TOKENS_PER_S
from omnizmq.workers.engines.qwen3_omni.seeing import Patches, Seeing


@dataclass(frozen=True, slots=True)
class Asked:
    """`sounds` and `patches`: what stands for the audio and image tokens among `ids`; `images`: where those are."""

    ids: list[int]
    sounds: Features | None = None
    patches: Patches | None = None
    images: list[Placed] = field(default_factory=list)

    @property
    def has_items(self) -> bool:
        return self.sounds is not None or self.patches is not None

    @property
    def usage(self) -> dict[str, int | float]:
        """How many of `ids` there are, and how many of them are sound and images, where any are."""
        heard = sum(self.sounds.tokens) if self.sounds is not None else 0
        seen = sum(image.tokens for image in self.images)
        counts = {"prompt_audio_tokens": heard, "prompt_image_tokens": seen}
        return {"prompt_tokens": len(self.ids), **{name: count for name, count in counts.items() if count}}


class Prompts:
    """Raises `LaunchError` when the checkpoint's tokenizer or preprocessor cannot be used."""

    def __init__(self, checkpoint: Checkpoint, config: Any, most: int) -> None:
        """`config`: the Thinker's; `most`: tokens that a prompt may have."""
        self._tokenizer = Tokenizer(checkpoint, config.text_config.vocab_size, most)
        if self._tokenizer.template is None:
            raise LaunchError(f"the checkpoint {checkpoint.path} has no chat template")
        self._audio: int = config.audio_token_id
        self._image: int = config.image_token_id
        self._video: int = config.video_token_id
        self._longest_s = most / TOKENS_PER_S
        self._hearing = Hearing(checkpoint, config.audio_config)
        self._seeing = Seeing(checkpoint, config.vision_config, most)
        self.vocabulary = self._tokenizer.vocabulary
        self._ids(Prompt("Hello.", None, None))  # a template that does not work is found now

    def read(self, prompt: Prompt | None) -> Asked:
        """Raises `InvalidRequestError`."""
        ids, sounds, images = self._ids(prompt), _files(prompt, AudioPart), _files(prompt, ImagePart)
        if self._video in ids:
            raise InvalidRequestError(
                "this thinker takes text, sound and images: the prompt has a placeholder of videos"
            )
        for token, files, kind in ((self._audio, sounds, "sounds"), (self._image, images, "images")):
            if (places := ids.count(token)) != len(files):
                raise InvalidRequestError(f"the prompt has {places} placeholders of {kind}, and {len(files)} {kind}")
        patches = self._seeing.patches(images) if images else None
        features = self._hearing.features(sounds, self._longest_s) if sounds else None
        grids = [] if patches is None else patches.grids
        counts = {
            self._audio: iter([] if features is None else features.tokens),
            self._image: iter([rows * columns for rows, columns in grids]),
        }
        spread = [token for token in ids for _ in range(next(counts[token]) if token in counts else 1)]
        return Asked(spread, features, patches, placed(spread, self._image, grids))

    def answer(self, text: str) -> list[int]:
        """A text that is to be the answer. Raises `InvalidRequestError`."""
        return self._tokenizer.plain(text, "the text to say")

    def _ids(self, prompt: Prompt | None) -> list[int]:
        """With one token for each sound and each image."""
        if prompt is None:
            raise InvalidRequestError("a thinker needs a prompt: it has no input edges")
        if prompt.token_ids is not None:
            return self._tokenizer.checked(prompt.token_ids)
        if prompt.messages is not None:
            turns = [{"role": message.role, "content": _content(message)} for message in prompt.messages]
        else:
            turns = [{"role": "user", "content": prompt.text or ""}]
        return self._tokenizer.ids(turns, add_generation_prompt=True)


def _files(prompt: Prompt | None, kind: type[AudioPart] | type[ImagePart]) -> list[bytes]:
    messages = (prompt.messages if prompt is not None else None) or []
    return [part.data for message in messages for part in message.content if isinstance(part, kind)]


def _content(message: Message) -> str | list[dict[str, str]]:
    """In the form of chat templates, where a sound or an image is a part without its content."""
    kinds = {AudioPart: "audio", ImagePart: "image"}
    parts = [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": kinds[type(part)]}
        for part in message.content
    ]
    return "".join(part.get("text", "") for part in parts) if all("text" in part for part in parts) else parts
