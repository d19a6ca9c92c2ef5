"""Usable devices of a node: hardware rank i is the i-th device, under the node's name for it."""

import pytest

from shoal.hardware.accelerators import Device, Restrictions
from shoal.hardware.accelerators.devices import split_visible, usable_devices

CUDA = Restrictions("CUDA_VISIBLE_DEVICES", container="NVIDIA_VISIBLE_DEVICES")
OBEYED = Restrictions("ASCEND_RT_VISIBLE_DEVICES", obeyed=True)
EIGHT = [Device("H100", f"GPU-{'abcdefgh'[i]}1-{i}", i) for i in range(8)]
BARE = [Device("X", index=i) for i in range(4)]  # a vendor without unique names
DIVIDED = [
    Device("H100 MIG 3g", "MIG-p", 0, is_part=True),
    Device("H100 MIG 3g", "MIG-q", None, is_part=True),
    Device("H100", "GPU-r", 1),
]


def names(devices, environment, restrictions=CUDA):
    """The node's names of its devices in rank order."""
    found, names = usable_devices(devices, environment, restrictions)
    assert not names or len(names) == len(found)
    return names or [str(i) for i in range(len(found))]


def test_without_a_list_devices_are_named_by_their_ranks():
    found, names = usable_devices(EIGHT, {}, CUDA)
    assert (found, names) == (EIGHT, [])


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("0,1", ["0", "1"]),
        ("4,5,6,7", ["4", "5", "6", "7"]),
        ("3,1", ["3", "1"]),
        (" 2 , 3 ", ["2", "3"]),
        ("GPU-c1-2,GPU-a1-0", ["GPU-c1-2", "GPU-a1-0"]),
        ("GPU-c", ["GPU-c"]),  # the beginning of a unique name
        ("1,GPU-c1-2", ["1", "GPU-c1-2"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1,-1,2", ["1"]),
    ],
)
def test_ranks_follow_the_list_of_the_node(visible, expected):
    assert names(EIGHT, {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_devices_follow_the_list_of_the_node():
    found, _ = usable_devices(EIGHT, {"CUDA_VISIBLE_DEVICES": "3,GPU-b1"}, CUDA)
    assert [device.index for device in found] == [3, 1]


@pytest.mark.parametrize(
    ("visible", "expected", "warning"),
    [
        ("0,9,1", ["0"], "the device 9 is not there"),
        ("GPU-zz,0", [], "the device GPU-zz is not there"),
        ("0,1,0", ["0", "1"], "the device 0 is there twice"),
        ("2,GPU-c1-2", ["2"], "the device GPU-c1-2 is there twice"),
        ("GPU-", [], "the device GPU- may be any of 8"),
    ],
)
def test_a_wrong_name_ends_the_list_with_a_warning(visible, expected, warning, caplog):
    assert names(EIGHT, {"CUDA_VISIBLE_DEVICES": visible}) == expected
    assert warning in caplog.text
    assert f"CUDA_VISIBLE_DEVICES={visible}" in caplog.text


def test_unique_names_are_kept_if_the_library_has_none():
    assert names(BARE, {"CUDA_VISIBLE_DEVICES": "GPU-x,GPU-y"}) == ["GPU-x", "GPU-y"]


def test_parts_of_a_gpu_have_unique_names():
    assert names(DIVIDED, {}) == ["MIG-p", "MIG-q", "GPU-r"]
    assert names(DIVIDED, {"CUDA_VISIBLE_DEVICES": "MIG-q,MIG-p"}) == ["MIG-q", "MIG-p"]
    # The number of a divided GPU makes only its first part visible.
    assert names(DIVIDED, {"CUDA_VISIBLE_DEVICES": "0"}) == ["0"]
    assert usable_devices(DIVIDED, {"CUDA_VISIBLE_DEVICES": "0"}, CUDA)[0] == DIVIDED[:1]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        *(
            ({f"SLURM_{kind}_GPUS": allotted}, expected)
            for kind in ("JOB", "STEP")
            for allotted, expected in (("4,5", "45"), ("2-3,6", "236"), ("7", "7"))
        ),
        # The step of a job has fewer devices than the job; the list of the node comes first.
        ({"SLURM_JOB_GPUS": "4-7", "SLURM_STEP_GPUS": "6,7"}, "67"),
        ({"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "4,5"}, "1"),
        ({"SLURM_JOB_GPUS": "gpu:2"}, "01234567"),  # not written by Slurm
        *(({"NVIDIA_VISIBLE_DEVICES": text}, "01234567") for text in ("all", "void", "", "ALL")),
        ({"NVIDIA_VISIBLE_DEVICES": "none"}, ""),
        # A privileged container sees all devices, and uses its own.
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-e1-4,GPU-f1-5"}, "45"),
        ({"NVIDIA_VISIBLE_DEVICES": "6,7"}, "67"),
        # A device that is listed twice is one device.
        ({"NVIDIA_VISIBLE_DEVICES": "4,4"}, "4"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-e1-4,4"}, "4"),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-e1-4,GPU-e"}, "4"),
    ],
)
def test_devices_allotted_by_slurm_or_to_a_container(environment, expected):
    assert names(EIGHT, environment) == list(expected)


@pytest.mark.parametrize("allotted", ["4,5", "0,1", "1,2"])
def test_a_confined_slurm_job_numbers_its_devices_from_0(allotted):
    """With GPUs 1 and 2, the job sees them as 0 and 1 and may use both."""
    assert names(EIGHT[:2], {"SLURM_JOB_GPUS": allotted}) == ["0", "1"]


def test_a_confined_container_numbers_its_devices_from_0():
    own = [Device("H100", "GPU-e1-4", 0), Device("H100", "GPU-f1-5", 1)]
    assert names(own, {"NVIDIA_VISIBLE_DEVICES": "GPU-e1-4,GPU-f1-5"}) == ["0", "1"]


def test_kubernetes_gives_parts_of_gpus_by_their_unique_names():
    assert names(DIVIDED, {"NVIDIA_VISIBLE_DEVICES": "MIG-q"}) == ["MIG-q"]
    assert names(DIVIDED, {"NVIDIA_VISIBLE_DEVICES": "MIG-q,MIG-p"}) == ["MIG-q", "MIG-p"]


def test_a_library_that_obeys_the_list_reports_only_visible_devices():
    assert names(BARE[:2], {"ASCEND_RT_VISIBLE_DEVICES": "6,7"}, OBEYED) == ["6", "7"]
    # The library's fallback may report all devices: the list still applies.
    assert names(BARE, {"ASCEND_RT_VISIBLE_DEVICES": "2,3"}, OBEYED) == ["2", "3"]
    assert names(BARE[:1], {"ASCEND_RT_VISIBLE_DEVICES": "6,7"}, OBEYED) == ["6"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1,2", ["1", "2"]), ("", []), ("1,,2", ["1"]), ("none", []), ("GPU-a,-1,GPU-b", ["GPU-a"])],
)
def test_splitting_a_visibility_variable(text, expected):
    assert split_visible(text) == expected
