"""The stage graph and what a request's modalities select."""

from __future__ import annotations

import pytest
from hypothesis import given
from support.pipelines import JOIN, SPEECH, pipeline
from support.properties import Dice, checked, dice
from support.random_graphs import graphs

from omnizmq.errors import InvalidRequestError
from omnizmq.pipeline import Pipeline


class TestOrder:
    def test_stages_come_in_topological_order_whatever_the_configuration_says(self) -> None:
        backwards = pipeline("c:audio; b > c; a:text > b")
        assert [stage.name for stage in backwards.stages] == ["a", "b", "c"]

    def test_the_longest_path_counts(self) -> None:
        assert [stage.name for stage in pipeline("a > d:text; a > b > c > d").stages] == ["a", "b", "c", "d"]

    def test_equal_depth_keeps_the_configured_order(self) -> None:
        assert [stage.name for stage in pipeline("z > b:text; z > a:audio").stages] == ["z", "b", "a"]

    def test_modalities_come_once_each_in_that_order(self) -> None:
        assert pipeline("a:text > b:audio; a > c:text").modalities == ["text", "audio"]


class TestPlan:
    def test_what_depends_on_nothing_asked_for_is_left_out_with_its_edges(self) -> None:
        plan = pipeline(SPEECH).plan(["text"])
        assert plan.names == ("thinker",)
        assert plan.edges == ()
        assert plan.outgoing == {"thinker": ()}

    def test_a_plan_is_made_once_a_set_of_modalities(self) -> None:
        speech = pipeline(SPEECH)
        assert speech.plan(["text", "audio"]) is speech.plan(["audio", "text", "text"]) is speech.plan(None)

    def test_a_join_has_both_its_inputs(self) -> None:
        plan = pipeline(JOIN).plan(["audio"])
        assert [edge.source for edge in plan.incoming["join"]] == ["left", "right"]

    def test_what_a_stage_is_fed_by_near_and_far_is_known_and_nothing_beside_it(self) -> None:
        plan = pipeline("a > b > d:text; a > c > d; c > e:audio").plan(None)
        assert plan.through("a") == {"a"}
        assert plan.through("d") == {"a", "b", "c", "d"}
        assert plan.through("e") == {"a", "c", "e"}

    def test_a_stage_without_final_output_has_no_modality(self) -> None:
        with pytest.raises(ValueError, match="talker has no final output"):
            pipeline(SPEECH).plan(None).modality("talker")

    @pytest.mark.parametrize(
        ("asked", "quoted"),
        [
            (["smell"], "'smell'"),
            (["smell", "text", "taste"], "'smell', 'taste'"),
            ([""], "''"),
            (["x" * 10_000], "'" + "x" * 40 + "'"),
            ([f"m{n:04}" for n in range(10_000)], "'m0000', 'm0001', 'm0002', 'm0003'"),
        ],
    )
    def test_what_does_not_exist_is_quoted_and_what_does_is_named(self, asked: list[str], quoted: str) -> None:
        with pytest.raises(InvalidRequestError) as caught:
            pipeline(SPEECH).plan(asked)
        assert caught.value.message == f"unknown modality {quoted}: this deployment has text, audio"


def with_upstream(stages: set[str], edges: set[tuple[str, str]]) -> set[str]:
    found = set(stages)
    while more := {source for source, target in edges if target in found} - found:
        found |= more
    return found


@checked(300)
@given(graphs, dice)
def test_a_plan_is_what_its_definition_says(graph: Pipeline, roll: Dice) -> None:
    """P1, P3 on any graph, against a definition that walks the edges one by one."""
    asked = set(roll.pick([[], graph.modalities, graph.modalities[:1], graph.modalities[1:]]))
    plan = graph.plan(sorted(asked))
    wanted = asked or set(graph.modalities)
    edges = {(edge.source, edge.target) for edge in graph.config.edge}
    final = {stage.name for stage in graph.config.stage if stage.final_output in wanted}
    needed = with_upstream(final, edges)
    position = {stage.name: n for n, stage in enumerate(graph.stages)}

    assert plan.final_stages == final
    assert set(plan.names) == needed
    assert {(edge.source, edge.target) for edge in plan.edges} == {edge for edge in edges if set(edge) <= needed}
    assert all(position[source] < position[target] for source, target in edges)
    assert list(plan.names) == sorted(needed, key=position.__getitem__)
    assert plan.last_stage == max(final, key=position.__getitem__)
    assert all(plan.through(name) == with_upstream({name}, edges) for name in plan.names)
