"""The Talker's network: its cache, its code predictor, and the inputs that both are given.

It follows `Qwen3OmniMoeForConditionalGeneration.generate` and `Qwen3OmniMoeTalkerForConditionalGeneration` of
transformers 5.24, rewritten so that text may come while it speaks, and for several requests at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import DynamicCache, Qwen3OmniMoeTalkerForConditionalGeneration
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping

from omnizmq.errors import LaunchError, StageError
from omnizmq.workers.engines.hf.sampling import Sampler, choose, finite
from omnizmq.workers.engines.hf.slots import Rows, Slots
from omnizmq.workers.engines.hf.stage import Stage
from omnizmq.workers.engines.hf.weights import make_model
from omnizmq.workers.engines.qwen3_omni.axes import Grid, Placed, placed, positions, shift
from omnizmq.workers.engines.qwen3_omni.speech_text import Words

SPECIAL_CODES = 1024
"""Ids at the end of the Talker's vocabulary that are no entries of the codebook."""

OPENING = 9
"""Positions that open the assistant's turn, up to the first spoken token."""

_EMBEDDINGS = "thinker.model.embed_tokens.weight"


@dataclass
class Reply:
    """What the network knows of one reply. `hidden` `[1, hidden]`: of its last position.

    `code`: the first group's, chosen and not yet made a frame; `frame` `[1, hidden]`: the sum of the last frame's
    embeddings, which goes into the next position. `steps`: positions after the prompt. `shift`: what images shift
    positions by.
    """

    length: int
    hidden: torch.Tensor
    shift: int = 0
    code: int | None = None
    frame: torch.Tensor | None = None
    steps: int = 0


class TalkerModel:
    """Slots are the caller's to take and give back. To be called in `torch.inference_mode`."""

    def __init__(self, stage: Stage) -> None:
        kind = Qwen3OmniMoeTalkerForConditionalGeneration
        # A checkpoint has one key an expert, the class one tensor for all: of this class the library does not know it.
        register_checkpoint_conversion_mapping(
            kind.__name__, get_checkpoint_conversion_mapping("qwen2_moe"), overwrite=True
        )
        whole, config = stage.config, stage.config.talker_config
        dtype = stage.dtype()
        tensors = stage.tensors(["talker."], strip="talker.", experts=config.text_config.num_experts)
        self._model: Any = make_model(kind, config, tensors, dtype, stage.device)
        self._config = config
        self._device = stage.device
        self._table = stage.tensors([_EMBEDDINGS])[_EMBEDDINGS].to(stage.device, dtype)
        self._text_begin: int = whole.tts_bos_token_id
        self.text_end: int = whole.tts_eos_token_id
        self.text_pad: int = whole.tts_pad_token_id
        thinker = whole.thinker_config
        self._image: int = thinker.image_token_id
        self._multimodal = {thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id}
        self.slots = Slots(config.text_config, stage.slots, stage.slot_tokens, dtype, stage.device)
        self.codes: int = config.text_config.vocab_size
        _check_ids(stage, len(self._table))
        self.end: int = config.codec_eos_token_id
        self.suppressed = torch.arange(self.codes, device=stage.device) >= self.codes - SPECIAL_CODES
        self.suppressed[self.end] = False

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises `StageError` for what is no token: on a GPU, to look it up would end the process."""
        wrong = next((token for token in tokens if not 0 <= token < len(self._table)), None)
        if wrong is not None:
            raise StageError(f"the thinker sent token id {wrong}, which is none of this model's {len(self._table)}")

    def check_rows(self, prompt: Sequence[int], rows: torch.Tensor | None) -> None:
        """Raises `StageError` unless there is a row for each of the prompt's positions of sound or images."""
        wanted, came = len(self._multimodal_positions(prompt)), 0 if rows is None else len(rows)
        if wanted != came:
            raise StageError(f"the prompt has {wanted} positions of sound or images, and the thinker sent {came} rows")

    def images(self, prompt: Sequence[int], grids: Sequence[Grid]) -> list[Placed]:
        """Those in the prompt. Raises `StageError` unless they are of the sizes that the thinker says."""
        try:
            return placed(prompt, self._image, grids)
        except ValueError as error:
            raise StageError(
                f"the thinker sent {len(grids)} sizes of images that are not the prompt's: {error}"
            ) from None

    def begin(
        self, slot: int, words: Words, rows: torch.Tensor | None, images: Sequence[Placed], speaker: int
    ) -> Reply:
        """Compute what comes before the first frame: the user's turns and the opening of the assistant's."""
        inputs = torch.cat((self._user(words, rows), self._assistant(words, speaker)))[None]
        index_of = {position: n for n, position in enumerate(words.user_positions)}
        seen = [replace(image, first=index_of[image.first]) for image in images if image.first in index_of]
        places = torch.from_numpy(positions(inputs.shape[1], seen)).to(self._device)[:, None]
        hidden = self._forward(inputs, self.slots.rows([slot], [0], inputs.shape[1]), places)
        return Reply(inputs.shape[1], hidden, shift(seen))

    def logits(self, replies: Sequence[Reply]) -> torch.Tensor:
        """Of the first group's next code, `[rows, codes]`."""
        logits: torch.Tensor = self._model.codec_head(torch.cat([reply.hidden for reply in replies]))
        return logits

    def frames(self, replies: Sequence[Reply], samplers: Sequence[Sampler]) -> list[list[int] | None]:
        """A frame of each reply that has a `code`: codes of all groups; None where logits were not finite."""
        predictor = self._model.code_predictor
        firsts = torch.tensor([reply.code for reply in replies], device=self._device)
        codes, embedded = [firsts], [self._model.model.codec_embedding(firsts)]
        cache = DynamicCache(config=predictor.config)
        inputs = torch.stack((torch.cat([reply.hidden for reply in replies]), embedded[0]), dim=1)
        fine = torch.ones(len(replies), dtype=torch.bool, device=self._device)
        for head, table in zip(predictor.lm_head, predictor.model.codec_embedding, strict=True):
            hidden = predictor.model(inputs_embeds=inputs, cache=cache, use_cache=True).last_hidden_state[:, -1]
            logits = head(hidden)
            fine &= finite(logits)
            codes.append(choose(logits, samplers))
            embedded.append(table(codes[-1]))
            inputs = embedded[-1][:, None]
        sums = torch.stack(embedded, dim=1).sum(1)
        frames = torch.stack((*codes, fine.to(firsts.dtype)), dim=1).tolist()
        for reply, frame in zip(replies, sums, strict=True):
            reply.code, reply.frame = None, frame[None]
        return [codes if good else None for *codes, good in frames]

    def advance(self, slots: Sequence[int], replies: Sequence[Reply], tokens: Sequence[int]) -> None:
        """The next position of each reply, in its slot: its last frame, and the token that is spoken next."""
        inputs = torch.cat([reply.frame for reply in replies if reply.frame is not None]) + self._text(tokens)
        rows = self.slots.rows(slots, [reply.length for reply in replies], 1)
        hidden = self._forward(inputs[:, None], rows, rows.shifted([reply.shift for reply in replies]))
        for reply, row in zip(replies, hidden, strict=True):
            reply.hidden, reply.frame = row[None], None
            reply.length += 1
            reply.steps += 1

    # --- Inside ----------------------------------------------------------------------------------------------------

    def _forward(self, inputs: torch.Tensor, rows: Rows, places: torch.Tensor) -> torch.Tensor:
        """`[rows, count, hidden]` at `places` `[3, rows, count]` -> the last position's output, `[rows, hidden]`."""
        made = self._model.model(inputs_embeds=inputs, attention_mask=rows.mask, position_ids=places, cache=rows)
        hidden: torch.Tensor = made.last_hidden_state[:, -1]
        return hidden

    def _text(self, tokens: Sequence[int]) -> torch.Tensor:
        """`[n, hidden]`: what tokens of text are to the Talker."""
        projected: torch.Tensor = self._model.text_projection(self._table[list(tokens)])
        return projected

    def _user(self, words: Words, rows: torch.Tensor | None) -> torch.Tensor:
        """The user's turns: text by its embeddings, sound and images by the Thinker's hidden states."""
        positions = words.user_positions
        inputs = self._text([words.prompt[n] for n in positions])
        if rows is not None:
            row_of = {position: row for row, position in enumerate(self._multimodal_positions(words.prompt))}
            there = [n for n, position in enumerate(positions) if position in row_of]
            chosen = rows[[row_of[positions[n]] for n in there]].to(inputs.dtype)
            inputs[there] = self._model.hidden_projection(chosen)
        return inputs

    def _multimodal_positions(self, prompt: Sequence[int]) -> list[int]:
        return [n for n, token in enumerate(prompt) if token in self._multimodal]

    def _assistant(self, words: Words, speaker: int) -> torch.Tensor:
        """Nine positions: the header alone, then text and codec side by side, up to the first spoken token."""
        config, pad = self._config, self.text_pad
        text = self._text([*words.header, pad, pad, pad, pad, self._text_begin, words.spoken[0]])
        codec = torch.tensor(
            [
                config.codec_nothink_id,
                config.codec_think_bos_id,
                config.codec_think_eos_id,
                speaker,
                config.codec_pad_id,
                config.codec_bos_id,
            ],
            device=self._device,
        )
        text[len(words.header) :] += self._model.model.codec_embedding(codec)
        return text


def _check_ids(stage: Stage, tokens: int) -> None:
    """What is looked up by a number of the configuration is there: else a GPU fails at the first request."""
    whole, config = stage.config, stage.config.talker_config
    texts = ("tts_bos_token_id", "tts_eos_token_id", "tts_pad_token_id")
    codecs = ("nothink", "think_bos", "think_eos", "pad", "bos", "eos_token")
    ids = [(name, getattr(whole, name), tokens) for name in texts]
    codes = config.text_config.vocab_size
    ids += [(f"codec_{name}_id", getattr(config, f"codec_{name}_id"), codes) for name in codecs]
    ids += [(f"speaker {name}", number, codes) for name, number in config.speaker_id.items()]
    for name, number, count in ids:
        if not 0 <= number < count:
            raise LaunchError(f"{stage.checkpoint.path}: {name} is {number}: there are {count} embeddings")
