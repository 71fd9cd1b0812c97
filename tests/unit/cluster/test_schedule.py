"""Which part begins where, and again: with nodes that die on paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fastkernels.cluster.schedule import MOST_ATTEMPTS, Answered, Lost, Part, Problem, answers
from fastkernels.errors import BaselineError, MachineError, MissingExtraError, NotFoundError, UsageError

End = Answered | Lost


class Paper:
    """Attempts end in the order in which they began, one in each look. `of`: how the n-th attempt of a part
    on a node ends; by default it is answered."""

    def __init__(self, *nodes: str, of: Callable[[Part, str, int], End | None] | None = None) -> None:
        self.nodes = set(nodes)
        self.began: list[tuple[str, str]] = []
        self.most_beside = 0
        self._of = of or (lambda part, node, attempt: None)
        self._running: list[tuple[Part, str, int]] = []

    def start(self, part: Part, node: str) -> None:
        self.began.append((part.name, node))
        attempt = [name for name, _ in self.began].count(part.name)
        self._running.append((part, node, attempt))
        self.most_beside = max(self.most_beside, len(self._running))

    def ended(self) -> list[tuple[Part, End]]:
        if not self._running:
            return []
        part, node, attempt = self._running.pop(0)
        return [(part, self._of(part, node, attempt) or Answered(node, f"{part.name} by {node}"))]

    def living(self) -> set[str]:
        return set(self.nodes)


def parts(count: int, **facts) -> list[Part]:
    return [Part(f"part {n}", None, **facts) for n in range(count)]


def test_every_part_is_answered_once_and_each_node_has_one_at_a_time() -> None:
    pool = Paper("a", "b")
    found = list(answers(parts(5), {"a": 1, "b": 1}, pool))
    assert sorted(part.name for part, _ in found) == [f"part {n}" for n in range(5)]
    assert pool.most_beside == 2
    assert {node for _, node in pool.began} == {"a", "b"}


def test_a_dead_nodes_part_begins_again_elsewhere_although_ray_still_counts_the_node() -> None:
    def dies(part: Part, node: str, attempt: int) -> End | None:
        return Lost(node, f"node {node} died", is_dead=True) if node == "b" else None

    heard: list[str] = []
    shown: list[str] = []
    pool = Paper("a", "b", of=dies)
    found = list(answers(parts(4), {"a": 1, "b": 1}, pool, heard.append, shown.append))
    assert sorted(part.name for part, _ in found) == [f"part {n}" for n in range(4)]
    assert {end.node for _, end in found} == {"a"}
    assert [node for _, node in pool.began].count("b") == 1
    assert heard == ["part 1: node b died; it begins again"]
    assert (shown[0], shown[-1]) == ("part 0 on a, and 1 more", "part 1 on a")


def test_a_candidates_failure_is_an_answer_and_not_asked_again() -> None:
    failure = Problem("BaselineError", "the baseline ran out of memory")
    pool = Paper("a", of=lambda part, node, attempt: Answered(node, failure))
    [(_, end)] = answers(parts(1), {"a": 1}, pool)
    assert end.answer is failure
    assert len(pool.began) == 1


def test_a_part_that_is_lost_again_and_again_is_given_up_and_the_others_are_not() -> None:
    def lost(part: Part, node: str, attempt: int) -> End | None:
        return Lost(node, "the judge's process was ended") if part.name == "part 0" else None

    pool = Paper("a", of=lost)
    found = {part.name: end.answer for part, end in answers(parts(3), {"a": 1}, pool)}
    assert [name for name, _ in pool.began].count("part 0") == MOST_ATTEMPTS
    assert found.pop("part 0").message == "lost 3 times, the last time: the judge's process was ended"
    assert found == {"part 1": "part 1 by a", "part 2": "part 2 by a"}


def test_an_attempt_that_was_taken_for_lost_and_answers_all_the_same_gives_no_second_answer() -> None:
    class Late(Paper):
        def ended(self) -> list[tuple[Part, End]]:
            found = super().ended()
            if found and isinstance(found[0][1], Lost):
                self._running.append((found[0][0], "b", MOST_ATTEMPTS))
            return found

    def once(part: Part, node: str, attempt: int) -> End | None:
        return Lost(node, "cut off") if attempt == 1 else None

    found = list(answers(parts(2), {"a": 1, "b": 1}, Late("a", "b", of=once)))
    assert sorted(part.name for part, _ in found) == ["part 0", "part 1"]


def test_without_a_node_that_lives_what_is_left_is_answered_by_a_problem() -> None:
    pool = Paper("a", of=lambda part, node, attempt: Lost(node, "node a died", is_dead=True))
    found = list(answers(parts(3), {"a": 1}, pool))
    assert sorted(part.name for part, _ in found) == ["part 0", "part 1", "part 2"]
    assert all(end.answer.error.exit_code == 3 for _, end in found)
    assert "no node is left" in found[0][1].answer.message


def test_a_group_has_all_its_gpus_on_one_node() -> None:
    group, single = Part("group", None, gpus=4), Part("single", None, gpus=1)
    pool = Paper("two", "four")
    assert len(list(answers([single, group], {"two": 2, "four": 4}, pool))) == 2
    assert pool.began == [("group", "four"), ("single", "two")]
    [(_, end)] = answers([Part("larger", None, gpus=8)], {"two": 2, "four": 4}, Paper("two", "four"))
    assert end.answer.message == "no node with 8 GPUs is left in the cluster"


def test_a_node_that_joins_later_is_not_asked() -> None:
    pool = Paper("a", "stranger")
    list(answers(parts(3), {"a": 1}, pool))
    assert {node for _, node in pool.began} == {"a"}


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (NotFoundError("task", "rms", ["L1/rms_norm"], "fk list"), UsageError),
        (BaselineError("no"), BaselineError),
        (MissingExtraError("Ray", "pip install", "--cluster"), MachineError),
    ],
)
def test_an_error_of_a_node_is_the_same_error_here(raised, kind) -> None:
    error = Problem.of(raised).error
    assert type(error) is kind
    assert (str(error), error.exit_code) == (str(raised), raised.exit_code)
