"""The import of torch in the background of a worker, with a slow package in its place."""

import ast
import os
import sys
import threading
from textwrap import dedent

import pytest

from shoal.bootstrap.preload import preload_torch
from support.processes import in_a_child, run_program

pytestmark = pytest.mark.nightly

SLOW = """
import importlib, os, time

open(os.environ["STARTED"], "w").close()
for number in range(int(os.environ["PARTS"])):
    importlib.import_module(f"torch.part{number}")
done = True
"""

START = """
import os, sys, threading, time
from shoal.bootstrap.preload import preload_torch

def started():
    while not os.path.exists(os.environ["STARTED"]):
        time.sleep(0.01)
"""


@pytest.fixture
def run(tmp_path):
    """Run a program in which `import torch` takes 0.02 s for each of its parts."""

    def start(program, parts=20, torch=SLOW, **variables):
        package = tmp_path / "torch"
        package.mkdir()
        (package / "__init__.py").write_text(torch)
        for number in range(parts):
            (package / f"part{number}.py").write_text("import time; time.sleep(0.02)\n")
        env = {k: v for k, v in os.environ.items() if not k.endswith("_PRELOAD_TORCH")}
        return run_program(
            "-c",
            START + dedent(program),
            env={
                **env,
                "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)]),
                "STARTED": str(tmp_path / "started"),
                "PARTS": str(parts),
                **variables,
            },
        )

    return start


def succeeded(process):
    assert process.returncode == 0, process.stderr
    assert "Fatal" not in process.stderr
    return process.stdout.split()


def test_the_import_runs_beside_the_worker(run):
    process = run(
        """
        preload_torch(driver_has_it=True)
        started()
        print(hasattr(sys.modules["torch"], "done"))
        import torch
        print(torch.done)
        """,
        parts=100,
    )
    assert succeeded(process) == ["False", "True"]
    assert process.stderr == ""


def test_the_end_of_the_process_stops_the_import(run):
    process = run(
        """
        import atexit

        @atexit.register  # runs after the function that stops the import
        def last():
            print([t.name for t in threading.enumerate()])

        preload_torch(driver_has_it=True)
        started()
        """,
        parts=2000,
    )
    assert succeeded(process) == ["['MainThread']"]


def test_a_fork_waits_for_the_import(run):
    process = run("""
        preload_torch(driver_has_it=True)
        started()
        child = os.fork()
        if not child:
            import torch
            os._exit(7 if torch.done else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert succeeded(process) == ["7"]


def test_a_fork_that_does_not_wait_long_enough_is_logged(run):
    process = run(
        """
        from shoal.bootstrap import preload

        preload._FORK_S = 0.1
        preload_torch(driver_has_it=True)
        started()
        child = os.fork()
        if not child:
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        parts=2000,
    )
    assert succeeded(process) == ["7"]
    assert "forks while its import of torch in the background goes on" in process.stderr
    assert "SHOAL_PRELOAD_TORCH=0" in process.stderr


@pytest.mark.parametrize(
    ("torch", "text"),
    [
        ("import module_that_is_missing\n", "ModuleNotFoundError: No module named 'module_that"),
        ("raise OSError('libcudart is missing')\n", "OSError: libcudart is missing"),
    ],
)
def test_a_broken_torch_is_logged_and_raises_where_the_worker_imports_it(run, torch, text):
    process = run(
        """
        preload_torch(driver_has_it=True)
        for thread in threading.enumerate():
            if thread.name == "shoal-import-torch":
                thread.join()
        try:
            import torch
        except (ImportError, OSError) as error:
            print(type(error).__name__)
        """,
        torch=torch,
    )
    assert succeeded(process) == [text.partition(":")[0]]
    assert f"torch cannot be imported: {text}" in process.stderr


def test_the_host_of_a_worker_begins_after_the_constructor(run):
    process = run(
        """
        from shoal.bootstrap.host import LaunchSpec, WorkerHost, own_versions, pack
        from shoal._backend import NAME

        class Worker:
            def __init__(self, fails):
                print("torch" in sys.modules)
                if fails:
                    raise ValueError

        def host(fails):
            payload, _, _ = pack(Worker, [fails], {})
            spec = LaunchSpec(
                "w:0", 0, "", 0, {}, NAME, "Worker", payload,
                    versions=own_versions(), driver_has_torch=True,
            )
            return WorkerHost(spec)

        def importing():
            return [t.name for t in threading.enumerate() if t.name == "shoal-import-torch"]

        failed = host(True)
        print(len(importing()), failed._shoal_ready() is not None)
        kept = host(False)
        print(len(importing()), kept._shoal_ready())
        """,
        parts=2000,
    )
    found = [word for word in succeeded(process) if not word.startswith(":actor_name:")]
    assert found == ["False", "0", "True", "False", "1", "None"]


@pytest.fixture
def imports(tmp_path, monkeypatch, caplog):
    """Return whether a child of this process begins to import torch, and what it logs."""
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for prefix in ("SHOAL_", "RLINF_"):
        monkeypatch.delenv(f"{prefix}PRELOAD_TORCH", raising=False)

    def began(driver_has_it):
        preload_torch(driver_has_it=driver_has_it)
        names = {thread.name for thread in threading.enumerate()}
        return "shoal-import-torch" in names, caplog.text

    return lambda driver_has_it: ast.literal_eval(in_a_child(began, driver_has_it))


@pytest.mark.parametrize(
    ("setting", "driver_has_it", "begins"),
    [
        (None, True, True),
        (None, False, False),
        ("", True, True),
        ("0", True, False),
        ("1", False, True),
    ],
)
def test_the_setting_decides_instead_of_the_driver(
    imports, monkeypatch, setting, driver_has_it, begins
):
    if setting is not None:
        monkeypatch.setenv("SHOAL_PRELOAD_TORCH", setting)
    assert imports(driver_has_it) == (begins, "")


def test_a_wrong_setting_is_logged(imports, monkeypatch):
    monkeypatch.setenv("SHOAL_PRELOAD_TORCH", "yes")
    begins, log = imports(True)
    assert begins
    assert "SHOAL_PRELOAD_TORCH='yes': expected 1 or 0" in log


def test_a_torch_that_is_loaded_is_not_imported_again(imports, add_module):
    add_module("torch")
    assert imports(True) == (False, "")
