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


def test_all_devices_have_no_names_but_their_ranks():
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
def test_the_order_of_the_nodes_own_list_is_the_order_of_ranks(visible, expected):
    assert names(EIGHT, {"CUDA_VISIBLE_DEVICES": visible}) == expected


def test_ranks_follow_the_list_to_the_devices():
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
def test_a_wrong_name_ends_the_list_aloud_as_it_does_for_cuda(visible, expected, warning, caplog):
    assert names(EIGHT, {"CUDA_VISIBLE_DEVICES": visible}) == expected
    assert warning in caplog.text
    assert f"CUDA_VISIBLE_DEVICES={visible}" in caplog.text


def test_unique_names_are_believed_where_the_library_has_none():
    assert names(BARE, {"CUDA_VISIBLE_DEVICES": "GPU-x,GPU-y"}) == ["GPU-x", "GPU-y"]


def test_parts_of_a_gpu_go_by_their_unique_names():
    assert names(DIVIDED, {}) == ["MIG-p", "MIG-q", "GPU-r"]
    assert names(DIVIDED, {"CUDA_VISIBLE_DEVICES": "MIG-q,MIG-p"}) == ["MIG-q", "MIG-p"]
    # The number of a divided GPU makes only its first part visible.
    assert names(DIVIDED, {"CUDA_VISIBLE_DEVICES": "0"}) == ["0"]
    assert usable_devices(DIVIDED, {"CUDA_VISIBLE_DEVICES": "0"}, CUDA)[0] == DIVIDED[:1]


@pytest.mark.parametrize("variable", ["SLURM_JOB_GPUS", "SLURM_STEP_GPUS"])
@pytest.mark.parametrize(
    ("allotted", "expected"), [("4,5", ["4", "5"]), ("2-3,6", ["2", "3", "6"]), ("7", ["7"])]
)
def test_slurms_allotment(variable, allotted, expected):
    assert names(EIGHT, {variable: allotted}) == expected


def test_the_step_of_a_slurm_job_has_less_than_the_job():
    assert names(EIGHT, {"SLURM_JOB_GPUS": "4-7", "SLURM_STEP_GPUS": "6,7"}) == ["6", "7"]


def test_a_confined_slurm_job_sees_its_own_devices_from_0_on():
    assert names(EIGHT[:2], {"SLURM_JOB_GPUS": "4,5"}) == ["0", "1"]
    assert names(EIGHT[:2], {"SLURM_JOB_GPUS": "0,1"}) == ["0", "1"]


def test_a_nodes_own_list_wins_over_slurms():
    assert names(EIGHT, {"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_GPUS": "4,5"}) == ["1"]


def test_what_slurm_cannot_have_written_is_ignored():
    assert names(EIGHT, {"SLURM_JOB_GPUS": "gpu:2"}) == list("01234567")


@pytest.mark.parametrize("text", ["all", "void", "", "ALL"])
def test_a_container_without_restriction(text):
    assert names(EIGHT, {"NVIDIA_VISIBLE_DEVICES": text}) == list("01234567")


def test_a_container_with_no_device():
    assert names(EIGHT, {"NVIDIA_VISIBLE_DEVICES": "none"}) == []


def test_a_container_that_sees_only_its_own_devices_numbers_them_from_0_on():
    allotted = {"NVIDIA_VISIBLE_DEVICES": "GPU-e1-4,GPU-f1-5"}
    assert names([Device("H100", "GPU-e1-4", 0), Device("H100", "GPU-f1-5", 1)], allotted) == [
        "0",
        "1",
    ]


def test_a_privileged_container_keeps_to_its_own_devices():
    assert names(EIGHT, {"NVIDIA_VISIBLE_DEVICES": "GPU-e1-4,GPU-f1-5"}) == ["4", "5"]
    assert names(EIGHT, {"NVIDIA_VISIBLE_DEVICES": "6,7"}) == ["6", "7"]


def test_kubernetes_gives_parts_of_gpus_by_their_unique_names():
    assert names(DIVIDED, {"NVIDIA_VISIBLE_DEVICES": "MIG-q"}) == ["MIG-q"]
    assert names(DIVIDED, {"NVIDIA_VISIBLE_DEVICES": "MIG-q,MIG-p"}) == ["MIG-q", "MIG-p"]


def test_a_library_that_obeys_the_list_tells_of_visible_devices_only():
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


@pytest.mark.parametrize("container", ["4,4", "GPU-e1-4,4", "GPU-e1-4,GPU-e"])
def test_a_device_that_a_container_was_given_twice_is_one(container):
    assert names(EIGHT, {"NVIDIA_VISIBLE_DEVICES": container}) == ["4"]


def test_a_confined_slurm_job_whose_numbers_overlap_with_what_it_sees():
    """The job has GPUs 1 and 2 and sees them as 0 and 1: it may use both."""
    assert names(EIGHT[:2], {"SLURM_JOB_GPUS": "1,2"}) == ["0", "1"]
