"""Every public callable has a signature that editors, type checkers and `help` can show."""

import importlib
import inspect
import typing

import pytest

from shoal import Channel, Cluster, Worker
from shoal.cluster.allocate import AllocateCall
from shoal.compat.rlinf import TABLE
from shoal.testing import LocalCluster

# All public modules, and those that `rlinf.scheduler` stands for.
MODULES = sorted(
    {
        "shoal",
        "shoal.auto_placement",
        "shoal.channel",
        "shoal.cluster",
        "shoal.collective",
        "shoal.compat.rlinf",
        "shoal.config",
        "shoal.dynamic_scheduler",
        "shoal.errors",
        "shoal.hardware",
        "shoal.manager",
        "shoal.placement",
        "shoal.planner",
        "shoal.profiling",
        "shoal.shm",
        "shoal.testing",
        "shoal.topology",
        "shoal.tracing",
        "shoal.worker",
    }
    | {home.partition(":")[0] for names in TABLE.values() for home in names.values()}
)

# Callables that pass arguments on to a function or class of the caller.
PASSED_ON = {
    "AsyncFuncWork",
    "AsyncWork.then",
    "ManagerProxy.begin_call",
    "Worker.create_group",
    "WorkerGroup.call_ranks",
    "WorkerMeta",
}
# Callables that take any number of values of one kind.
SEVERAL = {"CodeFolderError", "Document.where", "JobSizes", "WorkerGroup.execute_on"}

VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def public_callables():
    """Yield the name and the object of each public function, class and method."""
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            found = getattr(module, name)
            if not callable(found) or not getattr(found, "__module__", "").startswith("shoal"):
                continue
            if not getattr(found, "_is_protocol", False):  # which is never constructed
                yield name, found
            if inspect.isclass(found):
                yield from public_methods(found)


def public_methods(cls):
    for attribute in dir(cls):
        home = next(base for base in cls.__mro__ if attribute in vars(base) or base is object)
        if attribute.startswith("_") or not home.__module__.startswith("shoal"):
            continue
        raw = inspect.getattr_static(cls, attribute)
        value = None if isinstance(raw, property) else getattr(cls, attribute)
        if callable(value) and not inspect.isclass(value):
            yield f"{home.__name__}.{attribute}", value


def bare(function):
    """Return the parameters that stand for any arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return []  # a class of the core, or an exception without a constructor of its own
    return [
        p.name
        for p in parameters
        if p.kind in VARIABLE and typing.get_origin(p.annotation) is not typing.Unpack
    ]


def test_no_public_callable_takes_just_any_arguments():
    found = {name: bare(function) for name, function in public_callables()}
    assert len(found) > 100
    hidden = {name for name, names in found.items() if names}
    assert hidden == PASSED_ON | SEVERAL


@pytest.mark.parametrize(
    ("function", "names"),
    [
        (Cluster, ["num_nodes", "cluster_cfg", "distributed_log_dir", "timeout"]),
        (LocalCluster, ["num_nodes", "cluster_cfg"]),
        (Cluster.allocate, ["cls", "worker_name", "worker_rank", "node_rank"]),
        (Worker, ["parent_address", "world_size", "rank"]),
        (Worker.create_channel, ["channel_name", "maxsize", "distributed", "node_rank"]),
        (Worker.broadcast, ["self", "object", "groups", "src"]),
    ],
)
def test_the_signature_is_the_one_of_the_first_spelling(function, names):
    assert list(inspect.signature(function).parameters)[: len(names)] == names


def test_a_subclass_has_the_signature_of_its_own_constructor():
    class Own(Worker):
        def __init__(self, seed: int) -> None:
            super().__init__()

    assert str(inspect.signature(Own)) == "(seed: int) -> None"


def test_the_overloads_have_the_parameters_of_the_function():
    of_channel = set(inspect.signature(Channel.create).parameters) - {"name"}
    first = inspect.signature(typing.get_overloads(Worker.create_channel)[0])
    assert of_channel < set(first.parameters)
    assert len(typing.get_overloads(AllocateCall.__call__)) == 3
