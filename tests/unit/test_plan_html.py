"""The HTML page of a plan: its elements as text, and its script in a browser."""

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from shoal.planner import plan
from shoal.planner.colors import color_rules, split, stripes
from shoal.planner.html import render_html

pytestmark = pytest.mark.nightly

GOLDEN = Path(__file__).parents[1] / "golden" / "plan"
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&<!--\u2028{{7*7}}"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page(html.parser.HTMLParser):
    """The elements of a page: the number of each tag, the texts, and the plan's data."""

    def __init__(self, text):
        super().__init__()
        self.opened = {}
        self.cells = []
        self.texts = []
        self.data = ""
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.opened[tag] = self.opened.get(tag, 0) + 1
        attributes = dict(attrs)
        if tag == "i":
            self.cells.append(attributes.get("class") or "")
        self._in_data = tag == "script" and attributes.get("id") == "plan"

    def handle_endtag(self, tag):
        self._in_data = False

    def handle_data(self, data):
        if self._in_data:
            self.data += data
        else:
            self.texts.append(data)


@pytest.fixture
def shared(monkeypatch):
    monkeypatch.chdir(GOLDEN)
    return plan("shared.yaml", "rack.yaml")


def large(nodes=1024):
    placement = {
        "actor,critic": "0-4095:0-1023",
        "rollout": "4096-7167",
        "reward": "7000-7200:0-200",
        "env": {"node_group": "node", "placement": "0-99:0-399"},
    }
    return plan({"num_nodes": nodes, "component_placement": placement}, f"{nodes}x8:H100/64cpu")


def test_each_device_is_a_cell_of_its_components(shared):
    page = Page(render_html(shared))
    # The legend comes before the nodes: one entry per component, one idle, one shared.
    legend, cells = page.cells[:6], page.cells[6:]
    assert legend == ["c0", "c1", "c2", "c3", "", "shared-key"]
    assert cells[:6] == ["c0 c1 shared s0"] * 6
    assert cells[6:8] == ["c0 c1 c2 shared s1"] * 2
    assert cells[8:] == ["c2"] * 7 + [""]


def test_a_device_of_several_processes_of_a_component_is_marked():
    job = {"num_nodes": 1, "component_placement": {"a": "0:0-1,1:2"}}
    page = Page(render_html(plan(job, "1x3")))
    assert page.cells[-3:] == ["c0 several", "c0", ""]
    assert page.cells[:-3] == ["c0", "", "several"]  # the legend


def test_the_page_loads_no_other_files(shared):
    text = render_html(shared)
    assert not re.search(r"https?://|@import|url\(|<link|<img|<iframe|fetch\(|XMLHttp", text)
    assert "default-src 'none'" in text
    assert text == render_html(shared)  # the page does not depend on the time


def test_tooltips_have_every_variable_of_a_process(shared):
    data = json.loads(Page(render_html(shared)).data)
    component = data["components"][2]

    def value(column, process):
        found = component["columns"][column]
        if isinstance(found, int):
            return value(found, process)
        return found if isinstance(found, str) else found[process]

    for process in shared.component("rollout").processes:
        told = {
            name: value(column, process.rank)
            for column, name in enumerate(component["names"])
            if value(column, process.rank) is not None
        }
        interpreter = told.pop("interpreter", "")
        assert interpreter == process.interpreter
        assert told == shared.component("rollout").environment_of(process)
    assert data["nodes"][0]["devices"][6] == {
        "title": "NV_GPU:H100 device 6",
        "users": [[0, 3], [1, 3], [2, 0]],
    }


def test_hostile_names_stay_text():
    envs = [{"node_ranks": 0, "env_vars": [{"NAME": HOSTILE}]}]
    groups = [{"label": "g", "node_ranks": 0, "env_configs": envs}]
    placement = {
        HOSTILE: {"node_group": "g", "placement": "0"},
        "<b>": "0-1",
        "<i>x": {"node_group": "node", "placement": 0},
    }
    job = {"num_nodes": 1, "component_placement": placement, "node_groups": groups}
    nodes = [{"accelerators": 2, "model": HOSTILE, "hostnames": [HOSTILE]}]
    text = render_html(plan(job, nodes))
    page = Page(text)
    assert "img" not in page.opened
    # Five totals and the chip of the component without a device: no name opens an element.
    assert page.opened["b"] == 5 + 1
    assert page.opened["script"] == 2
    data = json.loads(page.data)
    assert data["components"][0]["name"] == HOSTILE
    assert HOSTILE in data["components"][0]["columns"]


@pytest.mark.parametrize(("devices", "size"), [(8, "large"), (128, "medium"), (8192, "small")])
def test_cells_shrink_with_their_number(devices, size):
    job = {"num_nodes": devices // 8, "component_placement": {"a": "all"}}
    assert f'<body class="{size}">' in render_html(plan(job, f"{devices // 8}x8"))


def test_components_look_different():
    rules = [rule for rule in color_rules(35) if rule.startswith(".c")]
    assert len({rule.partition("{")[2] for rule in rules}) == 35


@pytest.mark.parametrize("background", [stripes, split])
def test_shared_cells_show_the_colours_of_all_components(background):
    made = background([0, 1, 2])
    for color in ("#0072b2", "#e69f00", "#009e73"):
        assert color in made


def test_8192_devices_make_a_page_of_two_megabytes():
    text = render_html(large())
    assert len(text) < 2_000_000
    assert len(Page(text).cells) == 8192 + 5 + 2


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed: apt-get install chromium")
    return found


def open_page(browser, folder, text, fragment="", *arguments):
    """Open a page in a browser; return the document after its script has run."""
    path = folder / "plan.html"
    path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",  # root in a container has no sandbox
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            f"--user-data-dir={folder / 'profile'}",
            *(arguments or ["--dump-dom"]),
            f"{path.as_uri()}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )
    assert "Uncaught" not in done.stderr, done.stderr
    return done.stdout


@pytest.mark.browser
@pytest.mark.process
def test_the_filter_counts_the_devices_that_it_keeps(browser, tmp_path, shared):
    dom = open_page(browser, tmp_path, render_html(shared), "#q=roll")
    assert re.search(r'<output id="count">9 devices on 2 nodes</output>', dom)
    assert ".cells i:not(.c2), .chips b:not(.c2) { opacity: .13; }" in dom
    pressed = re.findall(r'data-c="(\d)" aria-pressed="true"', dom)
    assert pressed == ["2"]


@pytest.mark.browser
@pytest.mark.process
def test_a_tooltip_shows_rank_and_environment_of_all_processes(browser, tmp_path, shared):
    dom = open_page(browser, tmp_path, render_html(shared), "#node=0&device=6")
    tip = dom.partition('<div id="tip"')[2].partition("<script")[0]
    assert "node 0 rack-0 10.0.0.1: NV_GPU:H100 device 6" in tip
    for title in ("actor rank 3", "critic rank 3", "rollout rank 0"):
        assert f"<strong>{title}</strong>" in tip
    assert "interpreter=/opt/venv/bin/python" in tip
    assert "NCCL_SOCKET_IFNAME=eth0" in tip
    assert "WORLD_SIZE=9" in tip


@pytest.mark.browser
@pytest.mark.process
def test_a_hostile_name_does_not_run(browser, tmp_path):
    name = f"{HOSTILE}<script>document.title='taken'</script>"
    job = {"num_nodes": 1, "component_placement": {name: "0"}}
    text = render_html(plan(job, "1x1"))
    dom = open_page(browser, tmp_path, text, "#node=0&device=0&q=img")
    assert "<title>Plan: the configuration</title>" in dom
    assert "<img" not in dom
    # The tooltip and the counter, which the script makes from the name, work.
    assert "1 device on 1 node<" in dom
    assert "&lt;/script&gt;&lt;img" in dom.partition('<div id="tip"')[2]


@pytest.mark.browser
@pytest.mark.process
@pytest.mark.parametrize(("nodes", "least"), [(1, 4_000), (1024, 40_000)])
def test_the_page_is_drawn(browser, tmp_path, nodes, least):
    job = {"num_nodes": 1, "component_placement": {"a": "0-3", "b": "4-6"}}
    text = render_html(plan(job, "1x8:H100") if nodes == 1 else large(nodes))
    picture = tmp_path / "plan.png"
    open_page(browser, tmp_path, text, "", "--window-size=1200,900", f"--screenshot={picture}")
    content = picture.read_bytes()
    assert content.startswith(b"\x89PNG")
    # A blank image of this size has about 3 kB.
    assert len(content) > least
