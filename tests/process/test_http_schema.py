"""What `/openapi.json` says is true of the answers, whatever fits it is sent: schemathesis makes the requests."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from support.bridge import BODY, ECHO, web
from support.running import eventually, launched

pytestmark = [pytest.mark.http, pytest.mark.usefixtures("no_leaks")]

EXAMPLES = 40


PLAIN = ("model", "messages", "input", "stream_format", "modalities", "stream", "stream_options", "metadata", "user")


def about_this_model(body: Any) -> None:
    """So that it gets beyond the model's name; a part of them beyond everything that may be refused."""
    if isinstance(body, dict) and "model" in body:
        body["model"] = BODY["model"]
        if len(body) % 2 == 0:
            for name in [name for name in body if name not in PLAIN]:
                del body[name]
            if "messages" in body:
                body["messages"] = BODY["messages"]


def statuses_of(operation: Any) -> set[int]:
    """Of answers to what fits the operation's description; each is as its description says, and none is a 500."""
    from schemathesis.checks import CHECKS, load_all_checks

    load_all_checks()
    names = ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
    checks = CHECKS.get_by_names(names)
    seen: set[int] = set()

    @settings(max_examples=EXAMPLES, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case: Any) -> None:
        about_this_model(case.body)
        answer = case.call()
        assert answer.status_code != 500, answer.text
        case.validate_response(answer, checks=checks)
        seen.add(answer.status_code)

    ask()
    return seen


def test_answers_are_as_the_document_says_and_none_is_a_500() -> None:
    import schemathesis

    with launched("synthetic", *ECHO, "plugins.http.speech_to=prompt") as deployment, web(deployment) as http:
        schema = schemathesis.openapi.from_url(f"{http.base_url}/openapi.json")
        seen = {found.ok().label: statuses_of(found.ok()) for found in schema.get_all_operations()}
        assert {200, 400} <= seen["POST /v1/chat/completions"] & seen["POST /v1/audio/speech"]
        assert seen["GET /metrics"] == seen["GET /v1/deployment"] == {200}
        assert http.post("/v1/chat/completions", json=BODY).status_code == 200
        assert eventually(deployment.idle)


def test_every_refusal_is_described_in_one_shape() -> None:
    with launched("synthetic", *ECHO) as deployment, web(deployment) as http:
        document = http.get("/openapi.json").json()
    schema = {"$ref": "#/components/schemas/ErrorBody"}
    operations = [one for path in document["paths"].values() for one in path.values()]
    for operation in operations:
        refusals = {status: answer for status, answer in operation["responses"].items() if status != "200"}
        assert "422" not in refusals
        assert {"403", "500"} <= refusals.keys()
        assert all(answer["content"] == {"application/json": {"schema": schema}} for answer in refusals.values())
    chat = document["paths"]["/v1/chat/completions"]["post"]["responses"]
    assert set(chat) == {"200", "400", "401", "403", "404", "408", "413", "429", "499", "500", "503", "504"}
    assert not [name for name in document["components"]["schemas"] if "Validation" in name]
