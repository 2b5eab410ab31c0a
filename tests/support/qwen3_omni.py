"""The three stages of Qwen3-Omni in one process, and the library's own whole model beside them."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from transformers import (
    AutoTokenizer,
    Qwen2VLImageProcessorPil,
    Qwen3OmniMoeForConditionalGeneration,
    WhisperFeatureExtractor,
)
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import _get_feat_extract_output_lengths

from omnizmq.errors import OmnizmqError
from omnizmq.protocol import Prompt
from omnizmq.workers.engine import Audio, Chunk, Engine, EngineContext, EngineRequest
from omnizmq.workers.engines.hf import engine as hf

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

GREEDY = {"temperature": 0.0}
NAMES = ("thinker", "talker", "code2wav")


def context(
    role: str,
    model: str,
    private_dir: Path,
    options: dict[str, Any],
    names: Sequence[str] = NAMES,
    device: tuple[str, ...] = (),
) -> EngineContext:
    at = names.index(role)
    return EngineContext(
        stage=role,
        model=model,
        device=device,
        options={"role": role, **options},
        sources=tuple(names[max(at - 1, 0) : at]),
        targets=tuple(names[at + 1 : at + 2]),
        final_output={"thinker": "text", "code2wav": "audio"}.get(role),
        max_inflight=8,
        private_dir=private_dir,
        wake=lambda: None,
        progress=lambda _: None,
    )


def make(
    role: str,
    model: Path | str,
    private_dir: Path = Path("/nowhere"),
    device: tuple[str, ...] = (),
    **options: Any,
) -> Engine:
    return hf.create(context(role, str(model), private_dir, options, device=device))


@dataclass
class Made:
    """What a request came to. `tokens`, `codes`: what crossed the edges, without the prompt."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    chunks: list[NDArray[np.int16]] = field(default_factory=list)
    waves: list[NDArray[np.float32]] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    usage: dict[str, Mapping[str, int | float]] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    error: OmnizmqError | None = None
    events: list[str] = field(default_factory=list)  # "token" and "frames", in the order in which they came

    @property
    def codes(self) -> NDArray[np.int16]:
        return np.concatenate(self.chunks, axis=1) if self.chunks else np.zeros((0, 0), np.int16)

    @property
    def wave(self) -> NDArray[np.float32]:
        return np.concatenate(self.waves) if self.waves else np.zeros(0, np.float32)


class Stages:
    """Engines in a row, stepped in turns; what a worker does between them."""

    def __init__(self, engines: Mapping[str, Engine]) -> None:
        self.engines = engines
        self._order = tuple(engines)
        self.made: dict[str, Made] = {}
        self._live: dict[str, set[str]] = {name: set() for name in engines}

    def add(self, request_id: str, prompt: Prompt, **params: Mapping[str, Any]) -> None:
        self.made[request_id] = Made()
        for name, engine in self.engines.items():
            engine.add(EngineRequest(request_id, prompt if name == self._order[0] else None, params.get(name, {})))
            self._live[name].add(request_id)

    def abort(self, request_id: str) -> None:
        for name, engine in self.engines.items():
            engine.abort(request_id)
            self._live[name].discard(request_id)

    def rounds(self) -> Iterator[None]:
        """Until all have ended; each round steps every engine that has work."""
        while any(self._live.values()):
            stepped = [name for name in self.engines if self._step(name)]
            assert stepped, f"nothing can go on: {self._live}"
            yield

    def run(self) -> None:
        for _ in self.rounds():
            pass

    def _step(self, name: str) -> bool:
        engine = self.engines[name]
        ready = [request_id for request_id in sorted(self._live[name]) if engine.has_work(request_id)]
        if not ready:
            return False
        for output in engine.step(ready):
            made = self.made[output.request_id]
            if isinstance(output.content, str):
                made.text += output.content
            elif isinstance(output.content, Audio):
                made.waves.append(output.content.samples)
            for target, chunks in output.chunks.items():
                for chunk in chunks:
                    self._pass_on(made, output.request_id, name, target, chunk)
            if output.note:
                made.notes[name] = output.note
            if output.error is not None:
                made.error = output.error
                self.abort(output.request_id)
            if output.finish_reason is not None:
                made.reasons[name], made.usage[name] = output.finish_reason, output.usage
                self._live[name].discard(output.request_id)
                for target in self._order[self._order.index(name) + 1 :][:1]:
                    if output.request_id in self._live.get(target, ()):
                        self.engines[target].end_of_input(output.request_id, name)
        return True

    def _pass_on(self, made: Made, request_id: str, name: str, target: str, chunk: Chunk) -> None:
        if name == "thinker":
            first = not made.events
            made.events.append("prompt" if first else "token")
            made.tokens += [] if first else chunk.arrays["ids"].tolist()
        else:
            made.events.append("frames")
            made.chunks.append(chunk.arrays["codes"])
        if request_id in self._live.get(target, ()):
            self.engines[target].feed(request_id, name, received(chunk))


def received(chunk: Chunk) -> Chunk:
    """The chunk as its consumer gets it: arrays alone, read-only."""
    arrays = {}
    for array_name, array in chunk.content().items():
        out = np.empty(array.shape, array.dtype)
        if isinstance(array, np.ndarray):
            out[...] = array
        else:
            array.copy_to(out)
        out.flags.writeable = False
        arrays[array_name] = out
    return Chunk(chunk.meta, arrays)


class Reference:
    """The library's model in one process."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(path)
        self.model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(path, dtype=dtype).to(device).eval()
        # Its Talker counts the tokens of sounds beside images by a configuration that it does not have (5.24).
        self.model.talker.config.audio_config = self.model.config.thinker_config.audio_config
        self.extractor = WhisperFeatureExtractor.from_pretrained(path)
        self.image_processor = Qwen2VLImageProcessorPil.from_pretrained(path)
        self._template = json.loads((path / "chat_template.json").read_text())["chat_template"]

    def ids(self, text: str, sounds: Sequence[int] = (), images: Sequence[int] = ()) -> list[int]:
        """Of one user turn: text, then images, then sounds, of so many tokens each."""
        content = [{"type": "text", "text": text}]
        content += [{"type": "image"} for _ in images] + [{"type": "audio"} for _ in sounds]
        return self.ids_of([{"role": "user", "content": content if sounds or images else text}], [*images, *sounds])

    def ids_of(self, turns: Sequence[Mapping[str, Any]], counts: Sequence[int]) -> list[int]:
        """Of a conversation whose sounds and images have so many tokens each, in order."""
        whole = self.tokenizer.apply_chat_template(
            turns, chat_template=self._template, add_generation_prompt=True, tokenize=False
        )
        first, *others = re.split(r"(<\|(?:audio|image)_pad\|>)", whole)
        spread = [
            part for pad, rest, n in zip(others[::2], others[1::2], counts, strict=True) for part in (pad * n, rest)
        ]
        ids: list[int] = self.tokenizer("".join((first, *spread))).input_ids
        return ids

    def pixels(self, images: Sequence[Image.Image]) -> tuple[dict[str, torch.Tensor], list[int]]:
        """What `generate` takes of images, and how many tokens each becomes."""
        made = self.image_processor(images, return_tensors="pt")
        counts = made["image_grid_thw"].prod(-1) // self.image_processor.merge_size**2
        return {name: made[name] for name in ("pixel_values", "image_grid_thw")}, counts.tolist()

    def features(self, waves: Sequence[NDArray[np.float32]]) -> tuple[dict[str, torch.Tensor], list[int]]:
        """What `generate` takes of sounds at 16 kHz, and how many tokens each becomes: as the library's processor."""
        made = self.extractor(
            waves, sampling_rate=16_000, padding=True, truncation=False, return_attention_mask=True, return_tensors="pt"
        )
        counts = _get_feat_extract_output_lengths(made["attention_mask"].sum(-1))
        inputs = {"input_features": made["input_features"], "feature_attention_mask": made["attention_mask"]}
        return inputs, counts.tolist()

    def generate(
        self, ids: Sequence[int], thinker_tokens: int, talker_tokens: int, speaker: str, **inputs: Any
    ) -> Made:
        """Greedy: tokens, codes, and the wave of one whole decode."""
        decoded = []
        network = self.model.code2wav
        network.chunked_decode = lambda codes, **_: decoded.append(codes) or torch.zeros(1)
        try:
            with warnings.catch_warnings():
                # Of the repetition penalty, which is meant for generated codes alone.
                warnings.filterwarnings("ignore", message="Passing `repetition_penalty` with `inputs_embeds`")
                sequences, _ = self.model.generate(
                    input_ids=torch.tensor([ids], device=self.device),
                    speaker=speaker,
                    thinker_eos_token_id=self.model.config.im_end_token_id,
                    thinker_max_new_tokens=thinker_tokens,
                    thinker_do_sample=False,
                    talker_max_new_tokens=talker_tokens,
                    talker_do_sample=False,
                    **inputs,
                )
        finally:
            del network.chunked_decode
        (codes,) = decoded
        with torch.inference_mode():
            wave = network(codes)[0, 0].float().cpu().numpy()
        return Made(
            tokens=sequences[0, len(ids) :].tolist(), chunks=[codes[0].cpu().numpy().astype(np.int16)], waves=[wave]
        )
