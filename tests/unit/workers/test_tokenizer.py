"""A checkpoint's own tokenizer: what its template refuses is the caller's, and a text without one begins right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="not installed: the extra `transformers`")

from tokenizers import Tokenizer as Made
from tokenizers import models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from omnizmq.errors import InvalidRequestError
from omnizmq.workers.engines.hf.checkpoint import Checkpoint
from omnizmq.workers.engines.hf.tokenizer import Tokenizer

ALTERNATE = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}hello"
WORDS = {"<unk>": 0, "<s>": 1, "</s>": 2, "hello": 3}


def tokenizer(path: Path, template: str | None = None) -> Tokenizer:
    made = Made(models.WordLevel(WORDS, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    written = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    written.chat_template = template
    written.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return Tokenizer(Checkpoint(str(path)), len(WORDS), 100)


def test_what_the_template_refuses_is_the_callers(tmp_path: Path) -> None:
    made = tokenizer(tmp_path, ALTERNATE)
    assert made.ids([{"role": "user", "content": "hello"}]) == [3]
    with pytest.raises(InvalidRequestError, match="chat template does not take these messages: no system role"):
        made.ids([{"role": "system", "content": "hello"}])


def test_a_prompt_begins_with_the_models_bos_and_an_answer_does_not(tmp_path: Path) -> None:
    made = tokenizer(tmp_path)
    assert made.plain("hello hello", "the prompt", begins=True) == [1, 3, 3]
    assert made.plain("hello hello", "the text to say") == [3, 3]
