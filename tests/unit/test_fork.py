"""Forked children: the order of the hooks that they run first, and what belongs to their parent."""

import os

import pytest

from shoal.errors import TransportError
from shoal.process import Origin, own_process, per_process
from support.processes import in_a_child

pytestmark = pytest.mark.process


def test_functions_run_in_the_order_of_their_stages_although_one_fails(run_python):
    program = """
import logging, os, sys
from shoal.fork import ChildStage, in_child
logging.basicConfig(stream=sys.stdout)
in_child(ChildStage.KEEP, lambda: 1 / 0)
for stage in reversed(ChildStage):
    in_child(stage, lambda stage=stage: print(stage.name, flush=True))
in_child(ChildStage.KEEP, lambda: print("second", flush=True))
if not os.fork():
    os._exit(0)
os.wait()
"""
    said = run_python("-c", program).split()
    words = {"KEEP", "second", "RENEW", "FORGET"}
    assert [word for word in said if word in words] == ["KEEP", "second", "RENEW", "FORGET"]
    assert "ZeroDivisionError:" in said


def test_an_object_of_the_parent_is_refused_in_a_child():
    origin = Origin("the pair a -> b")

    def use():
        with pytest.raises(TransportError) as refused:
            origin.check()
        return origin.is_here, str(refused.value).partition(" was ")[2]

    origin.check()
    assert origin.is_here
    assert in_a_child(use) == repr(
        (
            False,
            f"forked from process {os.getpid()}, which made the pair a -> b; a child cannot use "
            "it: let its parent do it, or start the child with multiprocessing's method 'spawn'",
        )
    )


def test_each_process_has_results_of_its_own():
    made = per_process(lambda name: (name, os.getpid()))
    assert made("a") is made("a")
    assert in_a_child(lambda: made("a") == ("a", os.getpid())) == "True"
    assert in_a_child(lambda: own_process().pid == os.getpid()) == "True"
