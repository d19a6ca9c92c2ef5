"""A vendor's accelerators, written for RLinf, which `vendor.py` names as its extension module."""

import os

from rlinf.scheduler.hardware.accelerators.accelerator import AcceleratorManager

STEPS = []


class AcmeManager(AcceleratorManager):
    @staticmethod
    def get_num_devices() -> int:
        return 2

    @staticmethod
    def get_accelerator_type() -> str:
        return "ACME"

    @staticmethod
    def get_accelerator_model() -> str:
        return "A1"

    @staticmethod
    def get_accelerator_env_var(visible_accelerators: list[str]) -> dict[str, str]:
        return {"ACME_VISIBLE_DEVICES": ",".join(visible_accelerators)}

    @staticmethod
    def get_visible_devices() -> list[int]:
        text = os.environ.get("ACME_VISIBLE_DEVICES", "")
        return [int(device) for device in text.split(",") if device]

    @staticmethod
    def get_ccl_backend() -> str:
        return "accl"

    @staticmethod
    def get_ccl_socket_ifname_env_var() -> str:
        return "ACCL_IFNAME"

    @staticmethod
    def get_torch_platform() -> None:
        return None

    @staticmethod
    def get_device_type() -> str:
        return "acme"

    @staticmethod
    def get_accel_pg_options(options: object) -> None:
        return None

    @staticmethod
    def start_profiling(step_idx: int | None = None) -> None:
        STEPS.append(step_idx)

    @staticmethod
    def stop_profiling() -> None:
        STEPS.append("stop")


def register() -> None:
    AcceleratorManager.register_manager("ACME")(AcmeManager)
