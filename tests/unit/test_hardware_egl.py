"""EGL indices of a node's GPUs, with an EGL library that the test compiles."""

import os
import subprocess

import pytest

from shoal.hardware.accelerators.egl import egl_ids

# Three devices: a software renderer, the second visible GPU, the first one. Like NVIDIA's EGL, each
# reports the position of its GPU among the visible ones.
SOURCE = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int devices[3] = {-1, 1, 0};
static unsigned list(int most, void **found, int *count) {
    *count = getenv("FAKE_EGL_IS_BROKEN") ? 0 : 3;
    for (int i = 0; i < *count && i < most; i++) found[i] = &devices[i];
    return 1;
}
static unsigned attribute(void *device, int name, intptr_t *value) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int cuda = *(int *)device;
    if (name != 0x323A || cuda < 0) return 0;
    if (cuda == 1 && visible && !strchr(visible, ',')) return 0;  /* one GPU is visible */
    *value = cuda;
    return 1;
}
void *eglGetProcAddress(const char *name) {
    if (!strcmp(name, "eglQueryDevicesEXT")) return (void *)list;
    if (!strcmp(name, "eglQueryDeviceAttribEXT")) return (void *)attribute;
    return 0;
}
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("egl")
    (folder / "egl.c").write_text(SOURCE)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(folder / "libEGL.so.1"), str(folder / "egl.c")],
        check=True,
        timeout=60,
    )
    return {"LD_LIBRARY_PATH": str(folder), "PATH": os.environ["PATH"]}


# Without a name, shoal asks for all devices, whatever value the variable has.
@pytest.mark.parametrize(
    ("visible", "count", "more", "expected"),
    [
        ("", 2, {}, [2, 1]),
        ("GPU-a,GPU-b", 2, {}, [2, 1]),
        ("", 3, {}, [2, 1, -1]),  # EGL does not know the third GPU
        ("5", 1, {}, [2]),
        ("", 2, {"CUDA_VISIBLE_DEVICES": "3"}, [2, 1]),
        ("", 2, {"FAKE_EGL_IS_BROKEN": "1"}, []),
    ],
)
def test_each_gpu_has_the_index_that_egl_gives_it(environment, visible, count, more, expected):
    assert egl_ids(visible, count, environment | more) == expected


def test_without_egl_there_are_no_indices(tmp_path):
    # The loader finds this file first, which is not a library.
    (tmp_path / "libEGL.so.1").write_text("no library")
    assert egl_ids("0", 1, {"LD_LIBRARY_PATH": str(tmp_path)}) == []
