"""How a request's frames and facts are built."""

from __future__ import annotations

import msgspec
from support.pipelines import config
from support.playbook import rid, submission

from omnizmq import protocol as wire
from omnizmq.pipeline import Pipeline
from omnizmq.router import lifecycle as life
from omnizmq.router.pools import Binding, Pools
from omnizmq.router.request import Request
from omnizmq.trace.context import stage_traceparent

REQUEST = rid("demo")
CONFIG = config(
    "thinker:text > voice:audio; other => voice",
    stages={
        "thinker": {"params": {"temperature": 1.0, "seed": 5}},
        "voice": {"wants_prompt": True, "params": {"speed": 1.5}},
    },
)
PIPELINE = Pipeline(CONFIG)


def request() -> tuple[Request, Pools]:
    pools = Pools(PIPELINE.stages)
    for number, replica in enumerate(pools.replicas.values(), 1):
        replica.incarnation, replica.endpoint = number, f"ipc://{replica.id}"
    frame = submission(params={"thinker": {"temperature": 0.0, "top_p": 0.5, "seed": None}}, priority=3)
    made = Request(b"alice", frame, PIPELINE.plan(None), CONFIG.router, arrived=0.0)
    made.attempt.bindings = {one.stage: Binding(one.id, one.incarnation) for one in pools.replicas.values()}
    return made, pools


def test_a_stage_without_inputs_gets_the_prompt_and_the_requests_params_over_the_configured_ones() -> None:
    made, pools = request()
    assert made.submission("thinker", pools) == wire.SubmitStage(
        request_id=REQUEST,
        external_id="demo",
        attempt=1,
        engine_id=f"{REQUEST}/1/thinker",
        prompt=wire.Prompt("Hello.", None, None),
        original_prompt=None,
        params={"temperature": 0.0, "seed": 5, "top_p": 0.5},
        priority=3,
        final=True,
        window=1024,
        window_bytes=8 << 20,
        unread=0,
        sources=[],
        targets=[wire.Target("voice", "voice/0", 3, "ipc://voice/0", "chunk", 32, 60.0)],
        traceparent=stage_traceparent(REQUEST, f"{REQUEST}/1/thinker", None),
    )


def test_a_stage_with_inputs_gets_the_prompt_only_where_it_wants_it() -> None:
    made, pools = request()
    voice = made.submission("voice", pools)
    assert voice.prompt is None
    assert voice.original_prompt == wire.Prompt("Hello.", None, None)
    assert voice.params == {"speed": 1.5}
    assert voice.sources == [
        wire.Source("thinker", "thinker/0", 1, "chunk"),
        wire.Source("other", "other/0", 2, "payload"),
    ]
    assert voice.targets == []


def test_f2_the_next_attempt_is_told_how_much_of_the_earlier_ones_is_unread() -> None:
    made, pools = request()
    for n in range(3):
        made.delivered["thinker"].pass_on(wire.Text(str(n)), last=False, cut=False)
    made.delivered["thinker"].consume(1)
    bindings = made.attempt.bindings
    made.begin_again(wire.ErrorInfo("replica_lost", "it died", "thinker", "thinker/0", True))
    made.attempt.bindings = bindings
    again = made.submission("thinker", pools)
    assert (again.attempt, again.engine_id, again.unread) == (2, f"{REQUEST}/2/thinker", 2)
    assert made.submission("voice", pools).unread == 0
    assert made.shunned == {bindings["thinker"]}
    assert sorted(made.attempts) == [1, 2]


def test_b1_a_window_is_at_most_the_deployments_own() -> None:
    made, pools = request()
    asked = [(1, 1), (7, 7), (8, 8), (9, 8), (1 << 40, 8)]
    limits = msgspec.structs.replace(CONFIG.router, output_window=8, output_window_mib=2)
    for window, given in asked:
        again = Request(b"alice", submission(window=window), PIPELINE.plan(None), limits, arrived=0.0)
        again.attempt.bindings = made.attempt.bindings
        submitted = again.submission("thinker", pools)
        assert (submitted.window, submitted.window_bytes) == (given, 2 << 20)


def test_an_error_of_a_stage_gets_its_replica_and_any_other_is_left_as_it_is() -> None:
    made, _ = request()
    for stage, replica, shown in [
        ("voice", None, "voice/0"),
        ("voice", "voice/7", "voice/7"),
        (None, None, None),
        ("nobody", None, None),
    ]:
        error = wire.ErrorInfo("stage_error", "it broke", stage, replica, False)
        ended = life.SendTerminal("voice", "audio", "error", error, {}, ("voice",), {})
        terminal = made.terminal(ended)
        assert terminal.error is not None
        assert (terminal.error.stage, terminal.error.replica) == (stage, shown)
        assert made.terminal_facts(ended)["error_replica"] == shown
