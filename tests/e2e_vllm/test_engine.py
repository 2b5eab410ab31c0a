"""The engine alone, in the environment of vLLM: what is batched, what an abort frees, what is refused, what waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engines import context

from omnizmq.errors import ConfigError, InvalidRequestError, StageError
from omnizmq.protocol import AudioPart, Message, Prompt, TextPart
from omnizmq.workers.engine import Chunk, EngineBrokenError, EngineRequest, StageOutput

pytest.importorskip("vllm", reason="this environment has no vllm: `make test-vllm` runs it in one that has")

from omnizmq.workers.engines.vllm.engine import create
from omnizmq.workers.engines.vllm.generation import Generation

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]  # vLLM warns of its own dependencies

GREEDY: dict[str, Any] = {"temperature": 0.0}
OPTIONS = {"max_model_len": 1024, "dtype": "float32", "kv_cache_memory_bytes": 128 << 20, "block_size": 32}


@pytest.fixture(scope="module")
def engine(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generation]:
    made = create(
        replace(
            context("thinker", private_dir=tmp_path_factory.mktemp("p"), targets=("talker",), **OPTIONS),
            model=str(smollm),
            max_inflight=16,
        )
    )
    assert isinstance(made, Generation)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test the cache's blocks are free and no request is inside."""
    yield
    if "engine" in request.fixturenames:
        engine = request.getfixturevalue("engine")
        assert not engine._answers
        assert not engine._engine.has_unfinished_requests()
        assert free_blocks(engine) == all_blocks(engine) - 1, "one that vLLM keeps for itself"


def text(said: str) -> Prompt:
    return Prompt(said, None, None)


def asked(request_id: str, said: str | Prompt = "What is the capital of France?", **params: Any) -> EngineRequest:
    return EngineRequest(request_id, text(said) if isinstance(said, str) else said, {**GREEDY, **params})


def finish(engine: Generation, ready: Sequence[str]) -> tuple[dict[str, list[StageOutput]], int]:
    """Step until all have ended: what each made, and in how many steps."""
    made: dict[str, list[StageOutput]] = {request_id: [] for request_id in ready}
    going, steps = list(ready), 0
    while going:
        steps += 1
        for output in engine.step(going):
            made[output.request_id].append(output)
            if output.finish_reason is not None or output.error is not None:
                going.remove(output.request_id)
    return made, steps


def said(outputs: list[StageOutput]) -> str:
    return "".join(output.content for output in outputs if isinstance(output.content, str))


def all_blocks(engine: Generation) -> int:
    blocks: int = engine._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks
    return blocks


def free_blocks(engine: Generation) -> int:
    free: int = engine._engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return free


def test_its_greedy_text_is_vllms_own(engine: Generation, offline: Any) -> None:
    prompts = ["What is the capital of France?", "Say hello.", "Name three colours."]
    params = [{"max_tokens": 20, **GREEDY}, {"max_tokens": 5, **GREEDY}, {"max_tokens": 24, "stop": [","], **GREEDY}]
    expected = offline(list(zip(prompts, params, strict=True)))
    for n, (prompt, given) in enumerate(zip(prompts, params, strict=True)):
        engine.add(asked(str(n), prompt, **given))
        outputs = finish(engine, [str(n)])[0][str(n)]
        assert said(outputs) == expected[n]["text"]
        assert outputs[-1].finish_reason == expected[n]["reason"]
        assert outputs[-1].usage["completion_tokens"] == len(expected[n]["tokens"])
        chunks = [chunk for output in outputs for chunk in output.chunks.get("talker", [])]
        assert "".join(str(chunk.meta["text"]) for chunk in chunks) == expected[n]["text"]
    assert {one["reason"] for one in expected} == {"stop", "length"}


def test_sixteen_share_each_step(engine: Generation) -> None:
    """Continuous batching: sixteen answers of 24 tokens take about as many steps as one."""
    names = [f"b{n}" for n in range(16)]
    for n, name in enumerate(names):
        engine.add(asked(name, f"Count to {n + 3}.", max_tokens=24, ignore_eos=True))
    made, steps = finish(engine, names)
    assert all(outputs[-1].usage["completion_tokens"] == 24 for outputs in made.values())
    assert steps <= 2 * 24


def test_a_late_one_joins_those_that_run(engine: Generation) -> None:
    engine.add(asked("first", max_tokens=12, ignore_eos=True))
    for _ in range(6):
        engine.step(["first"])
    engine.add(asked("late", max_tokens=4, ignore_eos=True))
    outputs = [output for _ in range(4) for output in engine.step(["first", "late"])]
    assert {output.request_id for output in outputs} == {"first", "late"}
    finish(engine, ["first"])


def test_an_abort_frees_its_blocks_at_once_and_returns_what_was_held_back(engine: Generation) -> None:
    before = free_blocks(engine)
    engine.add(asked("gone", max_tokens=200, ignore_eos=True, stop=["never said at all"]))
    outputs = [output for _ in range(8) for output in engine.step(["gone"])]
    assert free_blocks(engine) < before
    (last,) = engine.abort("gone")
    assert free_blocks(engine) == before
    assert last.finish_reason == "abort"
    assert last.usage["completion_tokens"] == 8
    engine.add(asked("whole", max_tokens=8, ignore_eos=True))
    assert said(outputs) + str(last.content or "") == said(finish(engine, ["whole"])[0]["whole"])
    assert engine.abort("gone") == []


def test_one_that_may_not_go_on_waits_with_what_it_has(engine: Generation) -> None:
    """Its reader does not read: others go on, nothing of it is handed out, nothing of it is lost."""
    engine.add(asked("unread", max_tokens=16, ignore_eos=True))
    outputs = engine.step(["unread"])
    engine.add(asked("read", "Say hello.", max_tokens=16, ignore_eos=True))
    made, _ = finish(engine, ["read"])
    assert len(made["read"]) == 16
    rest, steps = finish(engine, ["unread"])
    assert steps <= 2
    engine.add(asked("again", max_tokens=16, ignore_eos=True))
    assert said(outputs) + said(rest["unread"]) == said(finish(engine, ["again"])[0]["again"])


def test_those_that_may_not_go_on_take_no_places_until_they_are_many(engine: Generation) -> None:
    """As many of them as run may be inside vLLM; behind more, one waits until one of them has been computed."""
    many = 2 * engine._context.max_inflight
    parked = [f"parked {n}" for n in range(many)]
    for name in parked:
        engine.add(asked(name, name, max_tokens=12, ignore_eos=True))
    for half in (parked[: many // 2], parked[many // 2 :]):
        engine.add(asked(f"runs beside {half[0]}", max_tokens=2, ignore_eos=True))
        engine.step(half)
        _, steps = finish(engine, [f"runs beside {half[0]}"])
        assert (steps <= 4) == (half[0] == parked[0]), "the first are no obstacle, the others are"
        assert engine._engine.get_num_unfinished_requests() <= many
    finish(engine, parked)


def test_an_output_that_cannot_be_read_is_its_requests_error(
    engine: Generation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others lose nothing, whether they may go on or not."""
    for name in ("parked", "bad", "well"):
        engine.add(asked(name, max_tokens=6, ignore_eos=True, **({"logprobs": 0} if name == "bad" else {})))
    begun = [*engine.step(["parked", "bad", "well"])]

    def fails(token: int) -> bytes:
        raise KeyError(token)

    monkeypatch.setattr(engine._prompts.vocabulary, "bytes_of", fails)
    (error,) = [output.error for output in engine.step(["bad", "well"]) if output.error is not None]
    assert error.message.startswith("vLLM made an output that is none: KeyError")
    monkeypatch.undo()
    engine.abort("well")
    rest = finish(engine, ["parked"])[0]["parked"]
    engine.add(asked("again", max_tokens=6, ignore_eos=True))
    first = [output for output in begun if output.request_id == "parked"]
    assert said(first) + said(rest) == said(finish(engine, ["again"])[0]["again"])


def test_one_that_was_not_let_run_is_not_in_vllm(engine: Generation) -> None:
    engine.add(asked("waiting", max_tokens=4))
    engine.add(asked("running", max_tokens=4))
    finish(engine, ["running"])
    assert engine._answers["waiting"].inner is None
    engine.abort("waiting")


def test_a_prompt_that_was_seen_before_is_cached(engine: Generation) -> None:
    long = "Tell me about the sea. " * 30
    for n in range(2):
        engine.add(asked(f"c{n}", long, max_tokens=2))
        usage = finish(engine, [f"c{n}"])[0][f"c{n}"][-1].usage
        assert usage.get("cached_tokens", 0) == (0 if n == 0 else usage["prompt_tokens"] // 32 * 32)


def test_a_text_is_said_without_computing(engine: Generation) -> None:
    engine.add(asked("said", say="Hello, you – all of you."))
    assert not engine._engine.has_unfinished_requests()
    outputs = finish(engine, ["said"])[0]["said"]
    assert said(outputs) == "Hello, you – all of you."
    assert outputs[-1].finish_reason == "stop"
    assert len(outputs) > 3


def test_the_stop_that_was_met_is_told(engine: Generation) -> None:
    engine.add(asked("s", "What is the capital of France?", stop=[" France"], max_tokens=20))
    last = finish(engine, ["s"])[0]["s"][-1]
    assert last.note == 'the answer ended before the stop text " France"'


def test_logprobs_are_vllms_own(engine: Generation, offline: Any) -> None:
    """Of each token that is generated, the one that ends the answer among them; greedy takes the likeliest."""
    prompt, params = "What is the capital of France?", {"max_tokens": 20, **GREEDY, "logprobs": 2}
    (expected,) = offline([(prompt, params)])
    engine.add(asked("l", prompt, **params))
    outputs = finish(engine, ["l"])[0]["l"]
    tokens = [each for output in outputs for each in output.logprobs]
    assert len(tokens) == len(expected["tokens"])
    for token, id_, among in zip(tokens, expected["tokens"], expected["logprobs"], strict=True):
        assert token.logprob == pytest.approx(among[str(id_)], abs=1e-4)
        assert [logprob for _, logprob in token.top] == pytest.approx(sorted(among.values())[:-3:-1], abs=1e-4)
        assert token.top[0] == (token.token, token.logprob)
    assert b"".join(token.token for token in tokens).decode() == expected["text"] + "<|im_end|>"
    assert outputs[-1].finish_reason == "stop"


def test_more_logprobs_than_vllm_gives_are_refused(engine: Generation) -> None:
    engine.add(asked("many", logprobs=21))
    (output,) = engine.step(["many"])
    assert isinstance(output.error, InvalidRequestError)
    assert output.error.message.startswith("vLLM refuses the request: Requested sample logprobs of 21")


def test_tokens_whose_text_is_held_back_come_with_theirs(engine: Generation) -> None:
    """A face is several tokens, and no part of it is text."""
    said_before = Prompt(None, [Message("user", [TextPart("Repeat: 😀😀😀")])], None)
    engine.add(asked("f", said_before, max_tokens=30, ignore_eos=True, logprobs=0, stop=["never said at all"]))
    outputs = finish(engine, ["f"])[0]["f"]
    assert sum(len(output.logprobs) for output in outputs) == 30
    assert all(each.top == [] for output in outputs for each in output.logprobs)


def test_an_abort_hands_out_the_tokens_that_nobody_has(engine: Generation) -> None:
    engine.add(asked("gone", max_tokens=40, ignore_eos=True, logprobs=0))
    engine.add(asked("read", max_tokens=40, ignore_eos=True))
    outputs = engine.step(["gone", "read"])
    for _ in range(3):
        engine.step(["read"])
    assert sum(len(output.logprobs) for output in outputs) == 1
    (last,) = engine.abort("gone")
    assert len(last.logprobs) == 3
    engine.abort("read")


@pytest.mark.parametrize(
    ("params", "line"),
    [
        ({"temperature": -1}, "vLLM refuses a parameter: temperature must be non-negative, got -1.0."),
        ({"max_tokens": "x"}, "parameter max_tokens: Expected `int | null`, got `str`"),
        ({"max_token": 3}, "parameter max_token is unknown: did you mean 'max_tokens'?"),
        ({"n": 2}, "parameter n is unknown: known are allowed_token_ids, "),
        ({"logprobs": -1}, "parameter logprobs = -1 is not usable: it must be from 0"),
        (
            {"structured_outputs": {"choise": "a"}},
            "parameter structured_outputs.choise is unknown: did you mean 'choice'?",
        ),
        ({"structured_outputs": "[" * 100_000}, "parameter structured_outputs: it is no JSON: "),
        ({"logit_bias": {"5": float("nan")}}, "parameter logit_bias: its values must be finite"),
        ({"logit_bias": {"x": 1.0}}, "parameter logit_bias: its keys must be ids of tokens"),
        ({"structured_outputs": "{"}, "parameter structured_outputs: it is no JSON: "),
        ({"say": " "}, "parameter say = ' ' is not usable: it must be a text"),
    ],
)
def test_bad_parameters_are_told_in_one_line(engine: Generation, params: dict[str, Any], line: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        engine.add(asked("bad", **params))
    assert refused.value.message.startswith(line)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        (text("word " * 2000), "the prompt has "),
        (Prompt(None, None, [1, 1 << 20]), "token id 1048576 is none of this model's 49152"),
        (Prompt(None, [Message("user", [TextPart("a"), AudioPart(b"RIFF")])], None), "message 1 has a sound or an im"),
        (None, "this stage needs a prompt"),
    ],
)
def test_bad_prompts_are_told_in_one_line(engine: Generation, prompt: Prompt | None, line: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        engine.add(EngineRequest("bad", prompt, {}))
    assert refused.value.message.startswith(line)


def test_what_structured_outputs_ask_for_is_kept(engine: Generation) -> None:
    engine.add(asked("choice", "Yes or no?", structured_outputs='{"choice": ["maybe"]}', max_tokens=8))
    assert said(finish(engine, ["choice"])[0]["choice"]) == "maybe"


@pytest.mark.parametrize(("age_s", "first"), [(3600.0, {"old", "urgent"}), (1e-6, {"old", "usual 0"})])
def test_b2_higher_priority_goes_first_and_waiting_raises_it(
    engine: Generation, monkeypatch: pytest.MonkeyPatch, age_s: float, first: set[str]
) -> None:
    """A step has room for two of the prompts."""
    monkeypatch.setattr(engine, "_context", replace(engine._context, priority_age_s=age_s))
    names = ["old", *(f"usual {n}" for n in range(6)), "urgent"]
    for name in names:
        prompt = f"{name} at {age_s}: " + "Tell me about the sea. " * 140
        engine.add(replace(asked(name, prompt, max_tokens=1), priority=7 if name == "urgent" else 0))
    begun = [output.request_id for output in engine.step(names)]
    assert set(begun) == first
    finish(engine, [name for name in names if name not in begun])


def test_a_text_over_an_edge_is_the_prompt(engine: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several edges in their order, whatever came first."""
    monkeypatch.setattr(engine, "_context", replace(engine._context, sources=("writer", "second")))
    engine.add(EngineRequest("fed", None, {**GREEDY, "max_tokens": 8, "ignore_eos": True}))
    for edge, piece in (("second", "France?"), ("writer", "What is the capital"), ("writer", " of ")):
        engine.feed("fed", edge, Chunk(meta={"text": piece}))
        assert not engine.has_work("fed")
    with pytest.raises(StageError, match="a chunk from writer has no text"):
        engine.feed("fed", "writer", Chunk())
    engine.end_of_input("fed", "writer")
    engine.end_of_input("fed", "second")
    outputs = finish(engine, ["fed"])[0]["fed"]
    monkeypatch.undo()
    engine.add(asked("plain", max_tokens=8, ignore_eos=True))
    assert said(outputs) == said(finish(engine, ["plain"])[0]["plain"])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"max_model_length": 8},
            "stage.thinker.options.max_model_length is unknown: did you mean 'max_mod",
        ),
        ({"max_model_len": "many"}, "stage thinker: vLLM cannot load "),
        ({"dtype": "float7"}, "stage thinker: vLLM cannot load "),
        ({"threads": 0}, "stage.thinker.options.threads = 0 is not usable"),
        ({"model": "x"}, "stage.thinker.options.model cannot be set: the configuration's `model` says it"),
    ],
)
def test_bad_options_are_told_in_one_line(smollm: Path, options: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        create(replace(context("thinker", **options), model=str(smollm)))
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


def test_f2_a_failure_of_its_step_breaks_the_engine(engine: Generation, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("the model runner is lost\nwith details")

    engine.add(asked("lost"))
    monkeypatch.setattr(engine._engine, "step", fail)
    with pytest.raises(EngineBrokenError, match=r"^vLLM's engine failed: RuntimeError: the model runner is lost$"):
        engine.step(["lost"])
    monkeypatch.undo()
    engine.abort("lost")
