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
TEXTS = [" hello", "hello the 日 cat", "café, ñandú", "hello", "😀 world", "the  cat\nsat"]


def of_pieces(*, prepended: bool = True) -> Tokenizer:
    """As those of SentencePiece are in a `tokenizer.json`: Llama 2's begin a text with a space, Gemma's do not."""
    made = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first" if prepended else "never")
    back = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prepended else back)
    made.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=100, special_tokens=["<unk>", "</s>"]))
    written = json.loads(made.to_str())
    vocabulary = written["model"]["vocab"]
    vocabulary |= {f"<0x{byte:02X}>": len(vocabulary) + byte for byte in range(256)}
    return Tokenizer.from_str(json.dumps(written))


def of_pieces_as_they_are() -> Tokenizer:
    return of_pieces(prepended=False)


def byte_level() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>"], initial_alphabet=alphabet)
    made.train_from_iterator(CORPUS, trainer)
    return made


@pytest.mark.parametrize("made", [of_pieces, of_pieces_as_they_are, byte_level])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_of_tokens_is_the_text(made: Any, text: str) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made(), eos_token="</s>")
    ids = tokenizer(text, add_special_tokens=False).input_ids
    vocabulary = Vocabulary(tokenizer)
    detokenizer = Detokenizer(vocabulary)
    expected = tokenizer.decode(ids)
    assert "".join(map(detokenizer.push, ids)) + detokenizer.finish() == expected
    whole = b"".join(map(vocabulary.bytes_of, ids)).decode()
    assert (whole.removeprefix(" ") if vocabulary.space_too_many else whole) == expected
    assert vocabulary.bytes_of(tokenizer.eos_token_id) == b""
    assert vocabulary.bytes_of(100_000) == b""


def test_of_any_other_vocabulary_a_token_is_what_the_library_makes_of_it() -> None:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "</s>": 1, "hello": 2, "##日": 3}, unk_token="[UNK]"))
    vocabulary = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>"))
    assert [vocabulary.bytes_of(token) for token in (2, 3)] == [b"hello", "##日".encode()]
