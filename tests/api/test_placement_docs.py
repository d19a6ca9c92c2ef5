"""docs/placement.md matches the code: its placements can be read, and its error is raised."""

import re

import pytest

import shoal
from shoal.errors import PlacementError
from shoal.placement import ComponentPlacement
from support.cluster_doubles import make_cluster
from support.documents import blocks, page

pytestmark = pytest.mark.nightly

DOCUMENT = page("docs/placement.md")
ROWS = re.findall(r"^\| (`.*?) \| (.*) \|$", DOCUMENT, flags=re.MULTILINE)
(SHOWN,) = (text for text in blocks(DOCUMENT, "text") if text.startswith("cluster."))


def place(text, sizes=(8,) * 8):
    cluster = make_cluster(sizes)
    return ComponentPlacement({"component_placement": {"actor": text}}, cluster)


@pytest.mark.parametrize(
    "text", [text for cell, _ in ROWS for text in re.findall(r"`(.*?)`", cell)]
)
def test_placements_of_the_table_are_read(text):
    assert place(text).get_world_size("actor") > 0


def test_the_table_is_there():
    assert len(ROWS) == 9
    assert list(place("0-63/8")._component_rank_map["actor"]) == [[r] for r in range(0, 64, 8)]


def test_the_configuration_is_read(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(blocks(DOCUMENT, "yaml")[-1])
    cluster = make_cluster([8] * 4, {"a800": [0], "arms": [1], "sim": [2]})
    plan = ComponentPlacement(path, cluster)
    assert [plan.get_world_size(name) for name in plan.components] == [8, 4, 4, 16, 201]


def test_the_error_is_the_one_that_is_raised(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("cluster:\n  num_nodes: 1\n  component_placement:\n    actor: 0-8\n")
    with pytest.raises(PlacementError) as caught:
        ComponentPlacement(path, make_cluster([8]))
    assert str(caught.value).replace(str(path), "job.yaml") + "\n" == SHOWN


def test_the_strategies_place_as_their_comments_say():
    cluster = make_cluster([8, 8], {"a800": [0]})
    found = []
    for line in blocks(DOCUMENT, "python")[-1].splitlines():
        code, _, comment = line.partition("  # ")
        placed = eval(code, {name: getattr(shoal, name) for name in shoal.__all__})
        ranks = [p.local_hardware_ranks for p in placed.get_placement(cluster)]
        found.append(str(ranks)[1:-1] == comment if comment.startswith("[") else len(ranks))
    assert found == [True, True, 2, 3]
