"""Tokens as bytes and as text, in both kinds of vocabulary: what the library's own decoder makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from omnizmq.workers.engines.hf.byte_tokens import Detokenizer, Vocabulary

CORPUS = ["the cat sat on the mat, hello world"] * 10
TEXTS = ["hello the 日 cat", "café, ñandú", "hello", "😀 world", "the  cat\nsat"]


def of_pieces() -> Tokenizer:
    """As those of SentencePiece are written in a `tokenizer.json`."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=100, special_tokens=["<unk>", "</s>"]))
    written = json.loads(made.to_str())
    vocabulary = written["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    return Tokenizer.from_str(json.dumps(written))


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>"], initial_alphabet=alphabet)
    made.train_from_iterator(CORPUS, trainer)
    return made


@pytest.mark.parametrize("made", [of_pieces, byte_level])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_of_tokens_is_the_text(made: Any, text: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made(), eos_token="</s>")
    ids = tokenizer(text, add_special_tokens=False).input_ids
    vocabulary = Vocabulary(tokenizer)
    detokenizer = Detokenizer(vocabulary)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.finish() == text
    assert b"".join(map(vocabulary.bytes_of, ids)).decode().removeprefix(" ") == text
    assert vocabulary.bytes_of(tokenizer.eos_token_id) == b""
    assert vocabulary.bytes_of(100_000) == b""
