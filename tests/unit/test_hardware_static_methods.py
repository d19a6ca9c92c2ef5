"""A vendor's class with the static methods that classes for RLinf have."""

import os

import pytest

from shoal.hardware import (
    Accelerator,
    AcceleratorManager,
    AcceleratorUtil,
    HardwareInfo,
    visibility_env,
)


@pytest.fixture
def acme(registries):
    """A vendor's class with the static methods that classes for RLinf have, and no attributes."""
    AcceleratorManager.manager_register.clear()

    @AcceleratorManager.register_manager("ACME")
    class Acme(AcceleratorManager):
        @staticmethod
        def get_num_devices():
            return 4

        @staticmethod
        def get_accelerator_type():
            return "ACME"

        @staticmethod
        def get_accelerator_model():
            return "A1"

        @staticmethod
        def get_accelerator_env_var(visible_accelerators):
            return {"ACME_KEEP": "1", "ACME_VISIBLE": ",".join(visible_accelerators)}

        @staticmethod
        def get_visible_devices():
            return [int(text) for text in os.environ["ACME_VISIBLE"].split(",")]

        @staticmethod
        def get_ccl_backend():
            return "accl"

        @staticmethod
        def get_ccl_socket_ifname_env_var():
            return "ACCL_IFNAME"

        @staticmethod
        def get_torch_platform():
            return "torch.acme"

        @staticmethod
        def get_device_type():
            return "acme"

        @staticmethod
        def get_accel_pg_options(options):
            return ["options", options]

    return Acme


def test_a_class_with_static_methods_describes_the_node(acme, monkeypatch):
    found = Accelerator.enumerate(0)
    assert found.infos == [HardwareInfo("Accelerator", "ACME:A1")] * 4
    assert found.device_names == []
    monkeypatch.setenv("ACME_VISIBLE", "1,3")
    for count in (4, 2):  # of the machine, or those that the variable names
        acme.get_num_devices = staticmethod(lambda count=count: count)
        assert Accelerator.enumerate(0).device_names == ["1", "3"]
    acme.get_num_devices = staticmethod(lambda: 0)
    assert Accelerator.enumerate(0) is None


def test_a_class_with_static_methods_answers_for_its_devices(acme, monkeypatch):
    restricted = {"ACME_KEEP": "1", "ACME_VISIBLE": "6,4"}
    assert visibility_env("ACME", [2, 0], ["4", "5", "6"]) == restricted
    assert AcceleratorUtil.get_accelerator_env_var("ACME", ["6", "4"]) == restricted
    monkeypatch.setenv("ACME_VISIBLE", "6,4")
    assert AcceleratorUtil.get_visible_devices("ACME") == [6, 4]
    assert AcceleratorUtil.get_ccl_backend("ACME") == "accl"
    assert AcceleratorUtil.get_ccl_socket_ifname_env_var("ACME") == "ACCL_IFNAME"
    assert AcceleratorUtil.get_torch_platform("ACME") == "torch.acme"
    assert AcceleratorUtil.get_device_type("ACME") == "acme"
    assert AcceleratorUtil.get_accel_pg_options("ACME", None) == ["options", None]
    AcceleratorUtil.start_profiling("ACME", 3)
    with AcceleratorUtil.profiling_range("ACME", "step"):
        AcceleratorUtil.stop_profiling("ACME")
