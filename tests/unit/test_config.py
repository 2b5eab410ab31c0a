"""Configurations: what loads, what it means, and what every refusal says."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from omnizmq import config, runtime
from omnizmq.config import Config, EdgeConfig, RouterConfig, StageConfig, effective, load, resolve, validate
from omnizmq.errors import ConfigError
from omnizmq.tables import read

GOOD = """
name = "demo"
model = "some/model"

[[stage]]
name = "thinker"
engine = "synthetic"
final_output = "text"
devices = ["cuda:0", ["cuda:1", "cuda:2"]]
[stage.params]
temperature = 0.5
stop = ["a", "b"]
[stage.options]
nested = { deep = [1, { x = 2 }] }

[[stage]]
name = "talker"
engine = "synthetic"
replicas = 3

[[stage]]
name = "code2wav"
engine = "synthetic"
final_output = "audio"

[[edge]]
from = "thinker"
to = "talker"
mode = "relay"

[[edge]]
from = "talker"
to = "code2wav"

[[edge]]
from = "thinker"
to = "code2wav"
window_chunks = 4

[router]
max_queued = 10
heartbeat_timeout_s = 5

[plugins.http]
port = 8091
"""

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(text: str) -> Path:
        path = tmp_path / "demo.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


def refusal(path: str | Path, *sets: str) -> str:
    """The one line that the refusal says."""
    with pytest.raises(ConfigError) as caught:
        load(path, sets)
    message = caught.value.message
    assert "\n" not in message
    return message


class TestLoad:
    def test_a_whole_file(self, write: Write) -> None:
        found = load(write(GOOD))
        assert found.name == "demo"
        assert [stage.name for stage in found.stage] == ["thinker", "talker", "code2wav"]
        thinker = found.stage[0]
        assert thinker.devices == ["cuda:0", ["cuda:1", "cuda:2"]]
        assert thinker.params == {"temperature": 0.5, "stop": ["a", "b"]}
        assert thinker.options == {"nested": {"deep": [1, {"x": 2}]}}
        assert [(edge.source, edge.target, edge.mode) for edge in found.edge] == [
            ("thinker", "talker", "relay"),
            ("talker", "code2wav", "chunk"),
            ("thinker", "code2wav", "chunk"),
        ]
        assert found.router == RouterConfig(max_queued=10, heartbeat_timeout_s=5.0)
        assert found.plugins == {"http": {"port": 8091}}

    def test_replicas_are_filled_in(self, write: Write) -> None:
        assert [stage.replicas for stage in load(write(GOOD)).stage] == [2, 3, 1]

    def test_effective_has_every_value_under_its_own_key(self, write: Write) -> None:
        values = effective(load(write(GOOD)))
        assert values["edge"][0] == {
            "from": "thinker",
            "to": "talker",
            "mode": "relay",
            "window_chunks": 32,
            "ring_mib": 64,
            "input_timeout_s": 60.0,
        }
        assert values["stage"][1]["max_inflight"] == 64
        assert values["router"]["terminal_grace_s"] == 5.0
        assert validate(read(Config, values)) == load(write(GOOD))

    def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(self, tmp_path: Path) -> None:
        path = tmp_path / "windows.toml"
        path.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
        assert load(path).name == "demo"

    def test_one_that_was_built_in_python(self) -> None:
        built = Config(name="x", stage=[StageConfig(name="a", engine="e", final_output="text", devices=["cpu", "cpu"])])
        assert validate(built).stage[0].replicas == 2
        with pytest.raises(
            ConfigError, match=r"stage.a.max_inflight: 0: a whole number from 1 to 1000000 was expected"
        ):
            validate(Config(name="x", stage=[StageConfig(name="a", engine="e", max_inflight=0)]))


class TestResolve:
    def test_shipped_configurations_load_by_their_bare_names(self) -> None:
        assert "synthetic" in config.shipped()
        for name, path in config.shipped().items():
            assert resolve(name) == path
            assert load(name).stage

    def test_synthetic(self) -> None:
        found = load("synthetic")
        assert [(stage.name, stage.final_output) for stage in found.stage] == [
            ("thinker", "text"),
            ("talker", None),
            ("code2wav", "audio"),
        ]
        assert {edge.mode for edge in found.edge} == {"chunk"}

    def test_a_shipped_name_wins_over_a_file_of_that_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "synthetic").mkdir()
        assert resolve("synthetic") == config.shipped()["synthetic"]
        assert resolve("./synthetic") == Path("synthetic")

    def test_what_is_missing_names_those_that_exist(self) -> None:
        assert re.fullmatch(
            r"'nowhere.toml': no such file, nor a shipped name: those are .*synthetic.*", refusal("nowhere.toml")
        )
        assert refusal("/dev/null/x").startswith("'/dev/null/x': no such file")
        assert refusal("").startswith("'': no such file")

    def test_a_path_that_cannot_be_one(self) -> None:
        assert refusal("a\0b").startswith(r"'a\x00b': cannot be read: ")
        assert refusal("x" * 5000).endswith("cannot be read: File name too long")


class TestFile:
    def test_a_directory(self, tmp_path: Path) -> None:
        assert refusal(tmp_path) == f"{tmp_path}: a directory, where a TOML file was expected"

    def test_unreadable(self, write: Write) -> None:
        path = write(GOOD)
        path.chmod(0)
        user = os.geteuid()
        if user == 0:  # root reads everything
            os.seteuid(65534)
        try:
            assert refusal(path).endswith(": cannot be read: Permission denied")
        finally:
            os.seteuid(user)

    def test_endless(self) -> None:
        assert refusal("/dev/zero") == "/dev/zero: cannot be read: larger than 1048576 bytes"

    def test_invalid_utf8_has_line_and_column(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.toml"
        path.write_bytes('name = "ä"\nmodel = "ü'.encode() + b'\xff"\n')
        assert refusal(path) == f"{path}: not UTF-8 text: byte 0xff (at line 2, column 11)"

    def test_syntax_has_line_and_column(self, write: Write) -> None:
        path = write('name = "x"\nmodel = = 2\n')
        assert refusal(path) == f"{path}: not TOML: Invalid value (at line 2, column 9)"
        assert refusal(write('name = "x"\nmodel =')).endswith("(at line 2, column 8, the end of the file)")
        assert "(at line 2, column 11)" in refusal(write('name = "x"\nname = "y"\n'))

    def test_nested_too_deeply(self, write: Write) -> None:
        path = write("x = " + "[" * 100_000)
        assert refusal(path) == f"{path}: nested too deeply"

    def test_empty(self, write: Write) -> None:
        path = write("")
        assert refusal(path) == f"{path}: name: missing: a name of 1 to 40 letters, digits, '_' and '-' was expected"


def one(extra: str, stage: str = "") -> str:
    return f'name = "x"\n[[stage]]\nname = "a"\nengine = "e"\nfinal_output = "text"\n{stage}\n{extra}'


class TestRefusals:
    """Each names file, key, value and what would do."""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ('nmae = "x"', "nmae: unknown key: did you mean 'name'?"),
            ("zzz = 1", "zzz: unknown key: known are name, model, stage, edge, router, device_memory_gib, plugins"),
            (one("[router]\nmax_queue = 3"), "router.max_queue: unknown key: did you mean 'max_queued'?"),
            (one("", "replica = 2"), "stage.a.replica: unknown key: did you mean 'replicas'?"),
            (one("[[edge]]\nform = 'a'\nto = 'b'"), "edge.1 of 1.form: unknown key: did you mean 'from'?"),
            (one("[[edge]]\nfrom = 'a'"), "edge.1 of 1.to: missing: a string was expected"),
            ('name = "x"', "stage: missing: a list was expected"),
            ('name = "x"\nstage = []', "stage: empty: at least one [[stage]] was expected"),
            (
                'name = "x"\n[stage]\nname = "a"',
                'stage: {"name": "a"}: a list of tables was expected, each under [[sta',
            ),
            ('name = "x"\nstage = [1]', "stage.1 of 1: 1: a table was expected"),
            ('name = "x"\n[[stage]]\nname = "a"', "stage.a.engine: missing: a string that is not empty was expected"),
            (
                'name = "x"\n[[stage]]\nengine = "a"',
                "stage.1 of 1.name: missing: a name of 1 to 64 letters, digits, '_' and '-' w",
            ),
            ("name = 3", "name: 3: a name of 1 to 40 letters, digits, '_' and '-' was expected"),
            ("name = 'a b'", 'name: "a b": a name of 1 to 40 letters'),
            (f"name = '{'x' * 41}'", f'name: "{"x" * 41}": a name of 1 to 40 letters'),
            ('name = """a\n"""', r'name: "a\n": a name of 1 to 40 letters'),
            (one("router = 5"), "stage.a.router: unknown key"),
            ("router = 5\nname = 'x'\nstage = []", "router: 5: a table was expected"),
            (one("", "engine2 = ''"), "stage.a.engine2: unknown key: did you mean 'engine'?"),
            (one("", "replicas = 'two'"), 'stage.a.replicas: "two": a whole number from 0 to 256 was expected'),
            (one("", "replicas = -1"), "stage.a.replicas: -1: a whole number from 0 to 256 was expected"),
            (one("", "replicas = 2.0"), "stage.a.replicas: 2.0: a whole number from 0 to 256 was expected"),
            (one("", "replicas = true"), "stage.a.replicas: true: a whole number from 0 to 256 was expected"),
            (one("", "max_inflight = 0"), "stage.a.max_inflight: 0: a whole number from 1 to 1000000 was expected"),
            (one("", "step_timeout_s = 0"), "stage.a.step_timeout_s: 0: a number above 0, up to 86400 was expected"),
            (
                one("", "step_timeout_s = nan"),
                "stage.a.step_timeout_s: NaN: a number above 0, up to 86400 was expected",
            ),
            (one("", "step_timeout_s = inf"), "stage.a.step_timeout_s: Infinity: a number above 0, up to 86400 was e"),
            (one("", "wants_prompt = 1"), "stage.a.wants_prompt: 1: true or false was expected"),
            (one("", "ready = 'some'"), 'stage.a.ready: "some": "all" or "any" was expected'),
            (
                one("", "policy = 'x'"),
                'stage.a.policy: "x": "affinity" or "least_loaded" or "round_robin" was expected',
            ),
            (one("", "python = ''"), 'stage.a.python: "": a string that is not empty was expected'),
            (
                one("", "devices = 'cuda:0'"),
                'stage.a.devices: "cuda:0": a list such as ["cuda:0", "cuda:1"], or [["cud',
            ),
            (one("", "devices = ['CUDA']"), 'stage.a.devices: ["CUDA"]: a list such as'),
            (one("", "devices = [[]]"), "stage.a.devices: [[]]: a list such as"),
            (one("", "devices = ['cuda']"), 'stage.a.devices: ["cuda"]: a list such as'),
            (one("", "devices = ['gpu:1']"), 'stage.a.devices: ["gpu:1"]: a list such as'),
            (one("", "devices = ['cuda:0,1']"), 'stage.a.devices: ["cuda:0,1"]: a list such as'),
            (one("", "devices = [['cuda:0', 'cuda:0']]"), 'stage.a.devices: ["cuda:0", "cuda:0"]: for one replica'),
            (one("", "devices = [['cuda:0', 'cpu']]"), 'stage.a.devices: ["cuda:0", "cpu"]: for one replica'),
            (one("", "params = 3"), "stage.a.params: 3: a table was expected"),
            (
                one("", "params = { x = [[1]] }"),
                "stage.a.params.x: [[1]]: a string, a number, true, false, or a flat l",
            ),
            (one("", "params = { x = 2024-01-01 }"), 'stage.a.params.x: "2024-01-01": a string, a number'),
            (one("", f"params = {{ x = {1 << 64} }}"), "stage.a.params.x: 18446744073709551616: a string, a number"),
            (one("", "options = []"), "stage.a.options: []: a table was expected"),
            (
                one("[router]\nterminal_grace_s = -1"),
                "router.terminal_grace_s: -1: a number from 0 to 86400 was expected",
            ),
            (
                one("[router]\nrelay_max_bytes = 0"),
                "router.relay_max_bytes: 0: a whole number from 1 to 67043328 was ex",
            ),
            (one("[plugins]\nhttp = 1"), "plugins.http: 1: a table was expected"),
        ],
    )
    def test_one_value(self, write: Write, text: str, expected: str) -> None:
        path = write(text)
        assert refusal(path).startswith(f"{path}: {expected}")

    def test_final_output_names_the_modalities(self, write: Write) -> None:
        text = 'name = "x"\n[[stage]]\nname = "a"\nengine = "e"\nfinal_output = "video"'
        assert refusal(write(text)).endswith('stage.a.final_output: "video": "audio" or "text" was expected')

    def test_long_values_are_cut(self, write: Write) -> None:
        assert len(refusal(write(one("", f"replicas = '{'x' * 10_000}'")))) < 400


def graph(*edges: str, stages: str = "abc", final: str = "c") -> str:
    text = 'name = "x"\n'
    for name in stages:
        text += f'[[stage]]\nname = "{name}"\nengine = "e"\n' + ('final_output = "text"\n' if name in final else "")
    for edge in edges:
        text += f'[[edge]]\nfrom = "{edge[0]}"\nto = "{edge[1]}"\nmode = "{"relay" if edge.isupper() else "chunk"}"\n'
    return text


class TestWhole:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (graph(stages="aba", final="a"), "stage: two stages are named 'a': each needs a name of its own"),
            (graph("ab", "bd"), "edge.b->d.to: no stage is named 'd': known are a, b, c"),
            (graph("da"), "edge.d->a.from: no stage is named 'd': known are a, b, c"),
            (graph("aa"), "edge.a->a: a stage cannot feed itself: two different stages were expected"),
            (graph("ab", "bc", "ab"), "edge.a->b: stated twice: one edge between two stages was expected"),
            (graph("ab", final=""), "stage: no stage has a final_output, so nothing could be asked for: "),
        ],
    )
    def test_refusals(self, write: Write, text: str, expected: str) -> None:
        path = write(text)
        assert refusal(path).startswith(f"{path}: {expected}")

    def test_p3_a_cycle_is_named(self, write: Write) -> None:
        message = refusal(write(graph("ab", "bc", "ca")))
        cycle = re.fullmatch(
            r".*: edge: the stages form a cycle, (. -> . -> . -> .): a graph without one was expected", message
        )
        assert cycle is not None
        assert cycle[1] in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")

    @pytest.mark.parametrize("edges", [(), ("ab", "ac", "bc"), ("ac", "bc"), ("ab", "cb")])
    def test_p3_any_acyclic_graph_loads(self, write: Write, edges: tuple[str, ...]) -> None:
        assert len(load(write(graph(*edges))).edge) == len(edges)

    def test_p5_relay_and_chunk_edges_into_one_stage(self, write: Write) -> None:
        text = graph("ac", "bc").replace('mode = "chunk"', 'mode = "relay"', 1)
        assert [edge.mode for edge in load(write(text)).edge] == ["relay", "chunk"]

    def test_devices_of_a_replica_are_its_gpus(self, write: Write) -> None:
        uuid = "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"
        stage = load(write(one("", f"devices = ['cpu', '{uuid}', ['cuda:1', 'cuda:10']]"))).stage[0]
        assert [stage.devices_of(n) for n in range(stage.replicas)] == [(), (uuid,), ("cuda:1", "cuda:10")]
        assert load(write(one("", "replicas = 2"))).stage[0].devices_of(1) == ()

    def test_devices_and_replicas_agree(self, write: Write) -> None:
        message = refusal(write(one("", 'devices = ["cuda:0"]\nreplicas = 2')))
        assert "stage.a.replicas: 2, but devices has 1: one device a replica was expected" in message
        assert load(write(one("", 'devices = ["cuda:0", "cuda:0"]\nreplicas = 2'))).stage[0].replicas == 2

    def test_timeouts_fit_each_other(self, write: Write) -> None:
        assert "router.heartbeat_timeout_s: 1.5: at least two heartbeats" in refusal(
            write(one("[router]\nheartbeat_timeout_s = 1.5"))
        )
        for port in (0, 65_536, 99_999):
            assert f"router.remote: port {port}: a port from 1 to 65535 was expected" in refusal(
                write(one(f'[router]\nremote = "tcp://127.0.0.1:{port}"'))
            )
        assert "router.max_restart_delay_s: 0.1: at least restart_delay_s (0.5) was expected" in refusal(
            write(one("[router]\nmax_restart_delay_s = 0.1"))
        )

    def test_b1_a_slow_reader_has_the_time_in_which_a_silent_router_is_noticed(self, write: Write) -> None:
        assert (
            "router.slow_reader_grace_s: 2.9: at least three heartbeats (3 x heartbeat_interval_s = 3) were expected, "
            "or a pause of the router is taken for its callers'"
        ) in refusal(write(one("[router]\nslow_reader_grace_s = 2.9")))
        assert "router.slow_reader_grace_s: 30: at least three" in refusal(
            write(one("[router]\nheartbeat_interval_s = 11\nheartbeat_timeout_s = 60"))
        )
        assert load(write(one("[router]\nslow_reader_grace_s = 3"))).router.slow_reader_grace_s == 3
        assert load(write(one("[router]\nslow_reader_grace_s = 0.3\nheartbeat_interval_s = 0.1")))

    def test_f2_who_waits_for_a_replica_waits_for_longer_than_its_restart_is_delayed(self, write: Write) -> None:
        delay = "[router]\nredrive_wait_s = 0.5\n"
        assert refusal(write(one(delay + 'redrive = "wait"'))).endswith(
            'router.redrive_wait_s: 0.5: with redrive = "wait", more than restart_delay_s (0.5) was expected: '
            "no replica is back sooner"
        )
        assert load(write(one(delay + 'redrive = "other"')))  # nobody waits
        assert load(write(one(delay + 'redrive = "wait"\nrestart_delay_s = 0.4')))

    @pytest.mark.parametrize("address", ["0.0.0.0", "*", "eth0", "host.example", "[::]", "[::1]", "[fe80::1%eth0]"])
    def test_w2_a_remote_address(self, write: Write, address: str) -> None:
        assert load(write(one(f'[router]\nremote = "tcp://{address}:5790"'))).router.remote == f"tcp://{address}:5790"

    @pytest.mark.parametrize(
        "endpoint", ["tcp://::1:5790", "tcp://[::1]", "tcp://[x]:1", "tcp://a:b:1", "tcp://a;b:1", "ipc:///x"]
    )
    def test_w2_what_is_no_remote_address_is_told_what_would_be(self, write: Write, endpoint: str) -> None:
        said = 'an address such as "tcp://0.0.0.0:5790" or "tcp://[::]:5790", or "" was expected'
        assert refusal(write(one(f'[router]\nremote = "{endpoint}"'))).endswith(f'router.remote: "{endpoint}": {said}')

    @pytest.mark.parametrize(
        "url",
        ["http://127.0.0.1:4318/v1/traces", "https://user:key@otel.example/x?a=b", "http://[::1]:4318/", "http://h/v1"],
    )
    def test_an_otlp_endpoint(self, write: Write, url: str) -> None:
        assert load(write(one(f'[router]\ntrace_otlp = "{url}"'))).router.trace_otlp == url

    @pytest.mark.parametrize("url", ["127.0.0.1:4318", "grpc://h:1/x", "http://h:4318", "http:///v1", "http://h/a b"])
    def test_what_is_no_otlp_endpoint_is_told_what_would_be(self, write: Write, url: str) -> None:
        said = 'a URL with its path such as "http://127.0.0.1:4318/v1/traces", or "" was expected'
        assert refusal(write(one(f'[router]\ntrace_otlp = "{url}"'))).endswith(f'router.trace_otlp: "{url}": {said}')

    @pytest.mark.parametrize(
        ("url", "why"),
        [
            ("http://h:99999/", "Port out of range 0-65535"),
            ("http://h:port/", "Port could not be cast to integer value as 'port'"),
            ("http://h:0/", "a host, and a port from 1 to 65535 or none, were expected"),
            ("http://:4318/", "a host, and a port from 1 to 65535 or none, were expected"),
        ],
    )
    def test_an_otlp_endpoint_that_cannot_be(self, write: Write, url: str, why: str) -> None:
        assert refusal(write(one(f'[router]\ntrace_otlp = "{url}"'))).endswith(f"router.trace_otlp: {url}: {why}")

    def test_without_facts_there_is_nothing_to_export(self, write: Write) -> None:
        assert refusal(write(one('[router]\ntrace = false\ntrace_otlp = "http://h/"'))).endswith(
            "router.trace_otlp: with trace = false there is nothing to send: one of both was expected"
        )

    @pytest.mark.parametrize("name", ["a", "A-b_9", "x" * 40, "", "x" * 41, "a b", "../a", "ä", "a\n"])
    def test_deployment_names_are_those_of_runtime_directories(self, name: str) -> None:
        def accepts(check: Callable[[], object]) -> bool:
            try:
                check()
            except ConfigError:
                return False
            return True

        built = Config(name=name, stage=[StageConfig(name="a", engine="e", final_output="text")])
        assert accepts(lambda: validate(built)) == accepts(lambda: runtime.check_name(name))

    def test_stage_names_with_dashes_stay_apart_from_arrows(self) -> None:
        stages = [StageConfig(name=name, engine="e", final_output="text") for name in ("a-", "b", "-b")]
        edges = [EdgeConfig(source="a-", target="b"), EdgeConfig(source="a-", target="-b")]
        assert len(validate(Config(name="x", stage=stages, edge=edges)).edge) == 2


class TestSets:
    def test_each_kind_of_key(self, write: Write) -> None:
        found = load(
            write(GOOD),
            [
                "name=other",
                "model=/a/path=with/equals",
                "stage.talker.replicas=2",
                "router.max_queued=11",
                "edge.thinker->talker.mode=payload",
                "stage.thinker.params.temperature=0.25",
                "stage.thinker.params.stop=['x']",
                "stage.talker.params.greeting = hello there ",
                "stage.talker.options.deep.er=true",
                "stage.talker.devices=['cuda:1', 'cuda:1']",
                "plugins.http.port=9000",
                "plugins.other.key=1e3",
            ],
        )
        assert (found.name, found.model) == ("other", "/a/path=with/equals")
        thinker, talker, _ = found.stage
        assert (talker.replicas, talker.devices) == (2, ["cuda:1", "cuda:1"])
        assert thinker.params == {"temperature": 0.25, "stop": ["x"]}
        assert talker.params == {"greeting": "hello there"}
        assert talker.options == {"deep": {"er": True}}
        assert found.router.max_queued == 11
        assert found.edge[0].mode == "payload"
        assert found.plugins == {"http": {"port": 9000}, "other": {"key": 1000.0}}

    def test_the_last_one_counts(self, write: Write) -> None:
        assert load(write(GOOD), ["router.max_queued=1", "router.max_queued=2"]).router.max_queued == 2

    def test_dates_and_several_lines_are_strings(self, write: Write) -> None:
        path = write(GOOD)
        assert load(path, ["model=2024-01-01"]).model == "2024-01-01"
        assert load(path, ["model=1\nname='x'"]).model == "1\nname='x'"
        assert load(path, ["model="]).model == ""

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("router.max_queued=ten", 'router.max_queued: "ten": a whole number from 0 to 1000000 was expected'),
            ("router.max_queue=10", "router.max_queue: unknown key: did you mean 'max_queued'?"),
            ("stage.talker.replicas=0.5", "stage.talker.replicas: 0.5: a whole number from 0 to 256 was expected"),
            ("stage.talker.max_inflight=-1", "stage.talker.max_inflight: -1: a whole number from 1 to 1000000 was e"),
            ("edge.thinker->talker.mode=fast", 'edge.thinker->talker.mode: "fast": "chunk" or "payload" or "relay" w'),
            ("stage.thinker.params.x={}", None),
            ("nmae=x", "nmae: unknown key: did you mean 'name'?"),
        ],
    )
    def test_a_bad_value_is_laid_at_the_overrides_door(self, write: Write, text: str, expected: str | None) -> None:
        if expected is None:
            assert load(write(GOOD), [text]).stage[0].params["x"] == {}
        else:
            assert refusal(write(GOOD), text).startswith(f"--set {text}: {expected}")

    @pytest.mark.parametrize(
        ("sets", "culprit"),
        [
            (["stage.thinker.params={x=[[1]]}"], 0),  # of which a part is wrong
            (["stage.thinker.replicas=3"], 0),
            (["router.max_queued=1", "stage.talker.devices=['cuda:0']"], 1),  # the file's replicas do not fit it
            (["router.heartbeat_interval_s=4", "router.max_queued=1"], 0),  # the file's timeout does not
            (["stage.talker.name=thinker", "router.max_queued=1"], 0),
            (["edge.thinker->talker.to=nobody"], 0),
            (["router.heartbeat_timeout_s=9", "router.heartbeat_interval_s=4", "router.heartbeat_timeout_s=5"], 2),
        ],
    )
    def test_what_fits_no_more_is_laid_at_the_door_of_the_override_that_made_it_so(
        self, write: Write, sets: list[str], culprit: int
    ) -> None:
        assert refusal(write(GOOD), *sets).startswith(f"--set {sets[culprit]}: ")

    def test_a_file_that_is_wrong_by_itself_is_not_laid_at_an_overrides_door(self, write: Write) -> None:
        path = write(GOOD.replace("replicas = 3", "replicas = -3"))
        assert refusal(path, "router.max_queued=1").startswith(f"{path}: stage.talker.replicas: -3: ")

    def test_a_judge_may_refuse_what_is_valid(self, write: Write) -> None:
        def judge(judged: Config) -> None:
            for stage in judged.stage:
                if stage.options.get("size", 0) > 1:
                    raise ConfigError(f"stage.{stage.name}.options.size is too large")

        path = write(GOOD)
        assert load(path, ["stage.talker.options.size=1"], judge=judge) == load(path, ["stage.talker.options.size=1"])
        for sets, who in (
            (["stage.talker.options.size=2"], "--set stage.talker.options.size=2"),
            (["stage.talker.options={size=2}"], "--set stage.talker.options={size=2}"),
        ):
            with pytest.raises(ConfigError) as refused:
                load(path, sets, judge=judge)
            assert refused.value.message == f"{who}: stage.talker.options.size is too large"
        large = write(GOOD.replace("replicas = 3", "replicas = 3\noptions = { size = 2 }"))
        with pytest.raises(ConfigError) as refused:
            load(large, ["router.max_queued=1"], judge=judge)
        assert refused.value.message == f"{large}: stage.talker.options.size is too large"

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("router.max_queued", "KEY=VALUE was expected, such as stage.talker.replicas=2"),
            ("=1", "KEY=VALUE was expected"),
            ("router..x=1", "KEY=VALUE was expected"),
            ("stage.talker=1", "stage.NAME.KEY=VALUE or edge.FROM->TO.KEY=VALUE was expected"),
            ("stage.tlaker.replicas=1", "no stage 'tlaker': did you mean 'talker'?"),
            ("edge.talker->thinker.mode=chunk", "no edge 'talker->thinker': did you mean '"),
            ("name.x=1", "'name' is a value, not a table that holds others"),
            ("stage.talker.devices=['a'", "the value is not TOML: "),
            ("model='open", "the value is not TOML: "),
        ],
    )
    def test_a_bad_override(self, write: Write, text: str, expected: str) -> None:
        assert refusal(write(GOOD), text).startswith(f"--set {text!r}: {expected}")
