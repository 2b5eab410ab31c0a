"""`/metrics`: it parses, its numbers are those of what was asked, and its labels are bounded."""

from __future__ import annotations

import signal
import socket
from typing import Any

import httpx
import pytest
from support.bridge import BODY, ECHO, LONG, SLOW, error_of, key, web
from support.running import eventually, kill, launched

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

CHAT = "/v1/chat/completions"
SPOKEN = {**BODY, "modalities": ["text", "audio"], "audio": {"voice": "default", "format": "pcm16"}}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(http: Any) -> Samples:
    """Each sample by its name and labels; none comes twice, and every family has a type and a help."""
    from prometheus_client.parser import text_string_to_metric_families

    answer = http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    assert all(family.type != "unknown" and family.documentation for family in families)
    samples: Samples = {}
    for family in families:
        for sample in family.samples:
            at = (sample.name, frozenset(sample.labels.items()))
            assert at not in samples
            samples[at] = sample.value
    return samples


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, frozenset(labels.items())]


def test_one_that_goes_before_its_body_has_come_is_counted_as_gone() -> None:
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        with socket.create_connection((http.base_url.host, http.base_url.port)) as caller:
            head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100"
            caller.sendall(f"{head}\r\nexpect: 100-continue\r\n\r\n".encode())
            assert caller.recv(4096).startswith(b"HTTP/1.1 100 ")
        answers: list[tuple[str, float]] = []

        def told() -> bool:
            answers[:] = [
                (dict(labels)["status"], count)
                for (name, labels), count in scraped(http).items()
                if name == "omnizmq_http_answers_total" and dict(labels)["path"] == CHAT
            ]
            return bool(answers)

        assert eventually(told)
        assert answers == [("499", 1)]


def test_what_was_asked_is_counted_and_measured() -> None:
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        assert http.post(CHAT, json=BODY).status_code == 200
        assert http.post(CHAT, json={**SPOKEN, "stream": True}).status_code == 200
        assert http.post(CHAT, json={**BODY, "params": {"thinker": {"nothing": 1}}}).status_code == 400
        assert http.post(CHAT, json={}).status_code == 400
        assert http.get("/v1/requests/one/trace").status_code == 404
        assert http.get("/nothing/here").status_code == 404
        assert http.get("/docs").status_code == http.get("/openapi.json").status_code == 200
        found = scraped(http)
        assert value(found, "requests_success_total", finished_reason="stop") == 2
        assert value(found, "requests_success_total", finished_reason="abort") == 0
        assert value(found, "omnizmq_requests_failed_total", code="invalid_request") == 1
        for path, status, count in (
            (CHAT, "200", 2),
            (CHAT, "400", 2),
            ("/v1/requests/{request_id}/trace", "404", 1),
            ("other", "404", 1),
            ("/docs", "200", 1),
            ("/openapi.json", "200", 1),
        ):
            assert value(found, "omnizmq_http_answers_total", path=path, status=status) == count
        assert value(found, "omnizmq_outputs_total", modality="text") == 6
        assert value(found, "omnizmq_outputs_total", modality="audio") == 3
        assert value(found, "audio_duration_s_sum") == pytest.approx(0.3)
        assert value(found, "omnizmq_audio_bytes_total") == 0.3 * 24000 * 4
        for name in ("audio_ttfp_s", "audio_rtf", "audio_duration_s", "audio_underrun_s"):
            assert value(found, f"{name}_count") == 1
        for name in ("omnizmq_first_text_seconds", "omnizmq_request_seconds"):
            assert value(found, f"{name}_count") == 2
        assert 0 < value(found, "audio_ttfp_s_sum") < value(found, "omnizmq_request_seconds_sum")
        latency = http.get("/v1/deployment").json()["http"]["latency"]
        assert latency["requests"] == 2
        assert 0 < latency["first_audio_s"]["p50"] <= latency["duration_s"]["p95"]


def test_the_deployments_state_is_told_and_what_is_in_work() -> None:
    settings = (*SLOW, "stage.talker.replicas=2", "plugins.http.max_concurrent=1")
    with launched("synthetic", *settings) as deployment, web(deployment) as http:
        with http.stream("POST", CHAT, json={**LONG, "stream": True}, headers={"x-request-id": "secret"}) as answer:
            assert http.post(CHAT, json=BODY).status_code == 429
            found = scraped(http)
            assert value(found, "omnizmq_http_answers_total", path=CHAT, status="429") == 1
            assert not [name for name, _ in found if name == "omnizmq_requests_failed_total"]
            assert value(found, "omnizmq_http_in_flight") == 1
            assert value(found, "omnizmq_live_requests") == 1
            assert value(found, "stage_inflight_requests", stage="thinker", replica="thinker/0") == 1
            assert value(found, "omnizmq_router_up") == value(found, "omnizmq_ready") == 1
            assert value(found, "omnizmq_replicas", stage="talker", state="ready") == 2
            assert value(found, "omnizmq_replicas", stage="talker", state="dead") == 0
            assert value(found, "omnizmq_ring_capacity_bytes", edge="thinker->talker", replica="thinker/0") > 0
            assert value(found, "omnizmq_router_events_total", event="requests") == 1
            labels = {pair for _, pairs in found for pair in pairs}
            assert not [pair for pair in labels if "secret" in pair[1] or answer.headers["x-request-id"] in pair[1]]
        assert eventually(deployment.idle)
        ended = scraped(http)
        assert value(ended, "requests_success_total", finished_reason="abort") == 1
        assert value(ended, "omnizmq_http_in_flight") == 0
        assert value(ended, "process_resident_memory_bytes") > 1e6


def test_a_caller_that_goes_is_counted_as_no_success() -> None:
    def gone(http: Any) -> float:
        return scraped(http).get(("omnizmq_http_answers_total", frozenset({"path": CHAT, "status": "499"}.items())), 0)

    with launched("synthetic", *SLOW) as deployment, web(deployment) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post(CHAT, json=LONG, timeout=0.5)
        assert eventually(lambda: gone(http) == 1)
        assert ("omnizmq_http_answers_total", frozenset({"path": CHAT, "status": "200"}.items())) not in scraped(http)
        assert eventually(deployment.idle)


def test_a_router_that_hangs_keeps_nobody_from_the_bridges_own_numbers() -> None:
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        kill(deployment.pid, signal.SIGSTOP)
        try:
            found = scraped(http)
        finally:
            kill(deployment.pid, signal.SIGCONT)
        assert value(found, "omnizmq_router_up") == 0
        assert value(found, "omnizmq_http_in_flight") == 0
        assert not [name for name, _ in found if name == "omnizmq_ready"]
        assert value(scraped(http), "omnizmq_router_up") == 1


def test_every_name_that_the_page_has_is_told_and_no_other() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    table = page.partition("| metric |")[2].partition("\n\n")[0]
    stated = {line.split("`")[1].partition("{")[0] for line in table.splitlines() if line.startswith("| `")}
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        http.post(CHAT, json={**BODY, "params": {"thinker": {"nothing": 1}}})
        told = {name for name, _ in scraped(http) if not name.startswith("process_")}
    endings = ("_bucket", "_sum", "_count", "_total")
    bases = {next((name.removesuffix(end) for end in endings if name.endswith(end)), name) for name in told}
    assert bases == {name.removesuffix("_total") for name in stated}


def test_where_there_are_keys_metrics_need_one() -> None:
    keys = f"plugins.http.api_keys=[{key('ann')}]"
    with launched("synthetic", *ECHO, keys) as deployment:
        with web(deployment) as nobody:
            assert error_of(nobody.get("/metrics"))[:2] == (401, "invalid_api_key")
        with web(deployment, authorization="Bearer key of ann") as ann:
            assert value(scraped(ann), "omnizmq_http_answers_total", path="other", status="401") == 1  # refused before


def test_a_model_of_any_name_is_a_label() -> None:
    with launched("synthetic", *ECHO, 'plugins.http.model="a \\"b\\" \\\\ c"') as deployment, web(deployment) as http:
        name = 'a "b" \\ c'
        assert [pairs for sample, pairs in scraped(http) if sample == "omnizmq_build_info" if ("model", name) in pairs]
        assert http.post(CHAT, json={**BODY, "model": name}).status_code == 200
