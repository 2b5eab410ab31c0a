"""Whatever is sent to the bridge, it answers in one shape or hangs up, has no failure of its own, and serves on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.bridge import BODY, ECHO, web
from support.running import Running, eventually, launched

from omnizmq.runtime import state_dir

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

CHAT = "/v1/chat/completions"
STATUSES = {200, 400, 401, 403, 404, 405, 408, 413, 429, 431, 499, 503, 504}
"""A stage's own failure is 500; there is none here."""

LIMIT_MIB = 1
TEXT = json.dumps(BODY).encode()
SETS = (*ECHO, "plugins.http.speech_to=prompt", f"plugins.http.max_body_mib={LIMIT_MIB}")


@pytest.fixture
def deployment() -> Iterator[Running]:
    with launched("synthetic", *SETS) as running:
        yield running
        with web(running) as http:
            answer = http.post(CHAT, json=BODY)
            assert answer.json()["choices"][0]["message"]["content"] == "one two three"
        assert eventually(running.idle)
        log = (state_dir(running.name) / "logs" / "http.log").read_text()
        assert "Traceback" not in log, log


def refused_well(answer: Any) -> None:
    assert answer.status_code in STATUSES, answer.text
    if answer.status_code != 200:
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["message"]
        assert "\n" not in error["message"]


# --- Bodies --------------------------------------------------------------------------------------------------------

ODD = ["\x00", "\ud800", "\U0010ffff", "é", "'\"\\", "🙂" * 40, "a" * 5000, "../..", "%s%n", "\u202e", ""]
NUMBERS = [0, -1, 2**31, 2**63, 2**64, 10**400, -(10**400), 0.0, -0.0, 1e308, float("nan"), float("inf"), float("-inf")]
VALUES = st.recursive(
    st.sampled_from([None, True, False, *NUMBERS, *ODD]) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ODD, "a", "text", "type"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = ["model", "messages", "modalities", "audio", "stream", "stream_options", "max_completion_tokens", "max_tokens"]
FIELDS += ["temperature", "top_p", "stop", "seed", "user", "metadata", "params", "n", "tools", "logit_bias", "nothing"]
PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "input_audio", "image_url", "file", 1, "\ud800"])},
    optional={"text": VALUES, "input_audio": VALUES, "image_url": VALUES},
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool", None])},
        optional={"content": VALUES | st.lists(PARTS, max_size=3), "audio": VALUES, "name": VALUES},
    ),
    max_size=3,
)
SOUNDS = st.fixed_dictionaries(
    {}, optional={"voice": VALUES | st.just({"id": "é"}), "format": st.sampled_from(ODD) | VALUES}
)
STAGES = st.dictionaries(
    st.sampled_from(["thinker", "talker", "code2wav", *ODD]),
    st.dictionaries(st.sampled_from(["max_tokens", "temperature", *ODD]), VALUES, max_size=2) | VALUES,
    max_size=2,
)
BODIES = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(FIELDS, VALUES)
    | {"messages": MESSAGES, "audio": SOUNDS, "params": STAGES, "modalities": st.just(["text", "audio"]) | VALUES},
)


def test_bodies_with_odd_values(deployment: Running) -> None:
    with web(deployment, **{"content-type": "application/json"}) as http:

        @settings(max_examples=250, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(BODIES, st.booleans())
        def ask(body: dict[str, Any], ascii_: bool) -> None:
            text = json.dumps({**BODY, **body}, ensure_ascii=ascii_)
            refused_well(http.post(CHAT, content=text.encode(errors="surrogatepass")))

        ask()


SPEECH = {"model": BODY["model"], "input": "one two three"}
SAID = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("model", "voice", "speed", "stream_format", "instructions", "nothing"), VALUES)
    | {"input": st.sampled_from([*ODD, "a" * 4096, "one two"]) | VALUES, "params": STAGES}
    | {"response_format": st.sampled_from(["wav", "pcm", "flac", "mp3", "opus", "aac", *ODD]) | VALUES},
)


def test_texts_to_be_said_with_odd_values(deployment: Running) -> None:
    with web(deployment, **{"content-type": "application/json"}) as http:
        assert http.post("/v1/audio/speech", json=SPEECH).status_code == 200

        @settings(max_examples=100, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
        @given(SAID)
        def ask(body: dict[str, Any]) -> None:
            text = json.dumps({**SPEECH, **body}, ensure_ascii=False)
            refused_well(http.post("/v1/audio/speech", content=text.encode(errors="surrogatepass")))

        ask()


def deep(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


def within(key: str, value: bytes) -> bytes:
    """A body that is right but for that."""
    return json.dumps(BODY)[:-1].encode() + b', "' + key.encode() + b'": ' + value + b"}"


BROKEN = {
    "nothing": b"",
    "no JSON": b"model=synthetic",
    "no object": b"[1, 2]",
    "cut off": json.dumps(BODY).encode()[:-3],
    "more behind": json.dumps(BODY).encode() + b"{}",
    "no UTF-8": within("user", b'"\xff\xfe"'),
    "a surrogate in UTF-8": within("user", b'"\xed\xa0\x80"'),
    "a lone surrogate": within("user", b'"\\ud800"'),
    "a lone surrogate in a key": within("metadata", b'{"\\ud800": "x"}'),
    "a lone surrogate as a field": within("\\ud800", b"1"),
    "a lone surrogate as a stage": within("params", b'{"\\ud800": {}}'),
    "a lone surrogate as a parameter": within("params", b'{"thinker": {"\\ud800": 1}}'),
    "a lone surrogate as a type": json.dumps(
        {**BODY, "messages": [{"role": "user", "content": [{"type": "\ud800"}]}]}
    ).encode(),
    "a lone surrogate as a role": json.dumps({**BODY, "messages": [{"role": "\udfff", "content": ""}]}).encode(),
    "NUL": within("user", b'"\x00"'),
    "NUL, escaped": within("user", b'"\\u0000"'),
    "UTF-16": json.dumps(BODY).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(BODY).encode(),
    "deep": deep(5_000),
    "too deep to look": deep(100_000),
    "deep lists": b"[" * 100_000,
    "deep where anything may stand": within("params", deep(900)),
    "deep where nothing counts": within("logit_bias", deep(900)),
    "deeper": within("tools", b"[" * 990 + b"]" * 990),
    "not a number": within("temperature", b"NaN"),
    "no end of a number": within("temperature", b"Infinity"),
    "a number for a parameter": within("params", b'{"thinker": {"temperature": NaN}}'),
    "many digits": within("seed", b"9" * 5000),
    "a number beyond 64 bits": within("seed", b"9" * 40),
    "a parameter beyond 64 bits": within("params", b'{"thinker": {"max_tokens": 99999999999999999999999}}'),
    "a large exponent": within("temperature", b"1e999999"),
    "a key twice": within("model", b'"another"'),
    "a key twice, the same": within("model", b'"synthetic"'),
    "many keys": within("metadata", json.dumps({str(n): "x" for n in range(10_000)}).encode()),
    "many messages": json.dumps({**BODY, "messages": BODY["messages"] * 5000}).encode(),
    "a long word": within("user", b'"' + b"x" * 900_000 + b'"'),
    "too large": b" " * ((LIMIT_MIB << 20) + 1),
}


TOLD = {
    "nothing": "the body is no JSON object: there is none",
    "no object": "the body is no JSON object: it is a list",
    "cut off": "the body is no JSON at character 79: Expecting ',' delimiter",
    "no UTF-8": "the body is no JSON: it is no UTF-8",
    "deep": "the body is no JSON that can be read here: it is nested too deeply",
    "too deep to look": "the body has more than 16384 values",
    "many digits": "the body is no JSON that can be read here: a number has too many digits",
    "a lone surrogate in a key": "the body has a lone surrogate, which is no character, at the end of '\\ud800'",
    "deep where anything may stand": "params.a.a.a: a number, a string, true, false or null was expected",
    "too large": "the body is larger than 1048576 bytes, as many as are read here",
}


def test_what_is_wrong_of_a_broken_body_is_said(deployment: Running) -> None:
    with web(deployment) as http:
        for name, message in TOLD.items():
            answer = http.post(CHAT, content=BROKEN[name], headers={"content-type": "application/json"})
            assert answer.json()["error"]["message"] == message
        answer = http.post(CHAT, content=TEXT, headers={"content-type": "text/plain"})
        expected = (
            "the body is no JSON object: send the header content-type: application/json, which says that it is one"
        )
        assert answer.json()["error"]["message"] == expected


def test_broken_bodies(deployment: Running) -> None:
    with web(deployment) as http:
        for kind in (
            "application/json",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "é",
            "",
        ):
            for name, body in BROKEN.items():
                answer = http.post(CHAT, content=body, headers={b"content-type": kind.encode("latin-1")})
                assert answer.status_code in STATUSES, (name, kind, answer.text)
                refused_well(answer)


# --- Headers and what no client sends ------------------------------------------------------------------------------


def request(*headers: bytes, body: bytes = TEXT, line: bytes = b"POST /v1/chat/completions HTTP/1.1") -> bytes:
    """A bridge that has answered it hangs up."""
    return (
        b"\r\n".join([line, b"host: localhost", b"connection: close", b"content-type: application/json", *headers])
        + b"\r\n\r\n"
        + body
    )


LENGTH = b"content-length: %d" % len(TEXT)
CHUNKED = b"transfer-encoding: chunked"
STRANGE = {
    "cut off before the line's end": b"POST /v1/ch",
    "cut off among headers": b"POST /v1/chat/completions HTTP/1.1\r\nhost: he",
    "a body that ends too soon": request(b"content-length: 9999"),
    "a body that goes on": request(b"content-length: 5"),
    "a negative length": request(b"content-length: -1"),
    "no number": request(b"content-length: many"),
    "a length of many digits": request(b"content-length: " + b"9" * 5000),
    "a length beyond the limit": request(b"content-length: 99999999999"),
    "two lengths": request(LENGTH, b"content-length: 3"),
    "no length": request(),
    "a length and chunks": request(LENGTH, CHUNKED, body=b"0\r\n\r\n"),
    "chunks without an end": request(CHUNKED, body=b"5\r\nhello\r\n"),
    "chunks of no size": request(CHUNKED, body=b"zz\r\nhello\r\n0\r\n\r\n"),
    "a chunk of a large size": request(CHUNKED, body=b"FFFFFFFFFFFFFFFF\r\nhello"),
    "another coding": request(b"transfer-encoding: gzip", body=b"0\r\n\r\n"),
    "a large header": request(LENGTH, b"x-large: " + b"x" * 200_000),
    "many headers": request(LENGTH, *(b"x-%d: y" % number for number in range(5000))),
    "a header without a name": request(LENGTH, b": x"),
    "a header with a space": request(LENGTH, b"x y: z"),
    "a header without a colon": request(LENGTH, b"xyz"),
    "a header that is continued": request(LENGTH, b"x-a: b\r\n c"),
    "NUL in a header": request(LENGTH, b"x-request-id: a\x00b"),
    "an id of other bytes": request(LENGTH, b"x-request-id: \xff\xfe"),
    "an id of UTF-8": request(LENGTH, "x-request-id: é🙂".encode()),
    "a long id": request(LENGTH, b"x-request-id: " + b"x" * 5000),
    "an id with an escape": request(LENGTH, b"x-request-id: \x1b[31m"),
    "two ids": request(LENGTH, b"x-request-id: a", b"x-request-id: b"),
    "no id": request(LENGTH, b"x-request-id:"),
    "a deadline of digits": request(LENGTH, b"x-request-timeout: " + b"9" * 5000),
    "a deadline with an underscore": request(LENGTH, b"x-request-timeout: 1_0"),
    "a deadline in other digits": request(LENGTH, "x-request-timeout: ٣".encode()),
    "a deadline at once": request(LENGTH, b"x-request-timeout: 1e-300"),
    "a span of other bytes": request(LENGTH, b"traceparent: \xff"),
    "a long span": request(LENGTH, b"traceparent: " + b"0" * 10_000),
    "a key of other bytes": request(LENGTH, b"authorization: Bearer \xff\xfe"),
    "a key alone": request(LENGTH, b"authorization: Bearer"),
    "a type of other bytes": request(LENGTH, b"content-type: \xff/\xfe; charset=\xfd"),
    "a charset": request(LENGTH, b"content-type: application/json; charset=utf-7"),
    "no host": b"GET /v1/models HTTP/1.1\r\nconnection: close\r\n\r\n",
    "HTTP/1.0": b"GET /v1/models HTTP/1.0\r\n\r\n",
    "HTTP/0.9": b"GET /v1/models\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
    "a method of its own": request(LENGTH, line=b"BREW /v1/chat/completions HTTP/1.1"),
    "a long method": request(LENGTH, line=b"X" * 70_000 + b" / HTTP/1.1"),
    "a long path": request(LENGTH, line=b"GET /" + b"x" * 70_000 + b" HTTP/1.1"),
    "a path of other bytes": request(line=b"GET /v1/models/\xff\xfe HTTP/1.1", body=b""),
    "a path of escaped bytes": request(line=b"GET /v1/models/%ff%fe HTTP/1.1", body=b""),
    "a path with NUL": request(line=b"GET /v1/requests/%00/trace HTTP/1.1", body=b""),
    "an id of escaped bytes": request(line=b"GET /v1/requests/%ed%a0%80%ff/trace HTTP/1.1", body=b""),
    "a long asked id": request(line=b"GET /v1/requests/" + b"%F0%9F%99%82" * 2000 + b"/trace HTTP/1.1", body=b""),
    "an id to abort": request(line=b"POST /v1/requests/%00%ff/abort HTTP/1.1", body=b""),
    "a broken escape": request(line=b"GET /v1/models/%zz% HTTP/1.1", body=b""),
    "a query of other bytes": request(line=b"GET /v1/models?%ff=\xfe HTTP/1.1", body=b""),
    "a whole URL": request(line=b"GET http://elsewhere/v1/models HTTP/1.1", body=b""),
    "a socket": request(b"upgrade: websocket", b"connection: upgrade", line=b"GET /v1/models HTTP/1.1", body=b""),
    "an expectation": request(LENGTH, b"expect: 100-continue"),
    "an expectation of too much": request(b"content-length: 99999999999", b"expect: 100-continue", body=b""),
    "another expectation": request(LENGTH, b"expect: everything"),
    "three at once": request(LENGTH) * 3,
    "noise": bytes(range(256)) * 40,
}


UNFINISHED = {
    "cut off before the line's end",
    "cut off among headers",
    "a body that ends too soon",
    "chunks without an end",
    "a chunk of a large size",
    "TLS",
    "noise",
}
"""Of those, what the bridge could wait for more of."""


def sent(deployment: Running, data: bytes, *, unfinished: bool = False) -> bytes:
    """What comes back until the bridge hangs up. Of an unfinished request the caller says that nothing follows."""
    host, _, port = deployment.ready["plugins"]["http"].removeprefix("http://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as peer:
        came = b""
        try:
            peer.sendall(data)
            if unfinished:
                peer.shutdown(socket.SHUT_WR)
            while part := peer.recv(65536):
                came += part
        except (ConnectionResetError, BrokenPipeError):
            pass  # it hung up on what it had not read
        return came


def test_headers_and_broken_requests(deployment: Running) -> None:
    statuses: dict[str, list[int]] = {}
    for name, data in STRANGE.items():
        lines = sent(deployment, data, unfinished=name in UNFINISHED).split(b"\r\n")
        found = [int(line.split(b" ")[1]) for line in lines if line.startswith(b"HTTP/1.")]
        assert all(status in STATUSES | {100} for status in found), (name, found)
        statuses[name] = found
    assert statuses["HTTP/1.0"] == statuses["a socket"] == statuses["a key alone"] == [200]
    assert statuses["a span of other bytes"] == statuses["a long span"] == [200]
    assert statuses["two lengths"] == statuses["a header without a colon"] == [400]
    assert statuses["an id of UTF-8"] == statuses["a deadline of digits"] == statuses["a long id"] == [400]
    assert statuses["a length beyond the limit"] == statuses["an expectation of too much"] == [413]
    assert statuses["a method of its own"] == [405]
    assert statuses["three at once"] == [200]


HEADERS = ["x-request-id", "x-request-timeout", "traceparent", "authorization", "content-type", "accept", "host"]


def test_headers_with_odd_values(deployment: Running) -> None:
    seen = set()

    @settings(max_examples=150, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(st.sampled_from(HEADERS), st.binary(max_size=30)), max_size=4))
    def ask(headers: list[tuple[str, bytes]]) -> None:
        came = sent(deployment, request(LENGTH, *(name.encode() + b": " + value for name, value in headers)))
        assert came, headers
        seen.add(status := int(came.split(b" ")[1]))
        assert status in STATUSES, came

    ask()
    assert {200, 400} <= seen
