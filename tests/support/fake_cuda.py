"""A CUDA driver that the test compiles, whose "memory of a GPU" are files that processes map.

It checks what the real one would refuse: memory that is freed or closed twice, and a handle that its
own process opens. `install` puts tensors of the CPU in the place of torch's tensors of a GPU.
"""

import ctypes
import importlib
import subprocess
from types import SimpleNamespace

from shoal.weights import cuda, device_memory, layout

torch = importlib.import_module("torch")

SOURCE = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef CHECK
#include <cuda.h>  /* for a compiler to compare the declarations */
#else
typedef int CUresult, CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;
typedef struct { char reserved[64]; } CUipcMemHandle;
#endif
static struct { CUdeviceptr at; size_t size; int own; char name[64]; } found[256];
static int folder(void) { return open(getenv("FAKE_CUDA"), O_RDONLY); }
static void note(const char *what) {
    int in = folder(), log = openat(in, "log", O_WRONLY | O_APPEND | O_CREAT, 0600);
    dprintf(log, "%d %s\n", getpid(), what);
    close(log); close(in);
}
static int map(const char *name, size_t size, int own, CUdeviceptr *at) {
    int in = folder(), file = openat(in, name, O_RDWR | (own ? O_CREAT : 0), 0600), n = 0;
    close(in);
    if (file < 0) return 400;
    struct stat status;
    if (own && ftruncate(file, size)) return 2;
    fstat(file, &status);
    while (found[n].at) n++;
    found[n].size = status.st_size; found[n].own = own; strcpy(found[n].name, name);
    *at = found[n].at = (CUdeviceptr)mmap(0, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return 0;
}
static int unmap(CUdeviceptr at, int own) {
    for (int n = 0; n < 256; n++)
        if (found[n].at == at && found[n].own == own) {
            munmap((void *)at, found[n].size);
            int in = folder();
            if (own) unlinkat(in, found[n].name, 0);
            close(in);
            memset(&found[n], 0, sizeof found[n]);
            return 0;
        }
    abort();
}
CUresult cuInit(unsigned flags) { return flags; }
CUresult cuDeviceGet(CUdevice *device, int index) { *device = 7 + index; return 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    *context = (CUcontext)(long)(device + 1);
    return 0;
}
static long current;
CUresult cuCtxPushCurrent_v2(CUcontext context) { current = (long)context; return 0; }
CUresult cuCtxPopCurrent_v2(CUcontext *context) { *context = (CUcontext)current; current = 0; return 0; }
CUresult cuCtxSynchronize(void) { note("synchronize"); return current == 8 ? 0 : 201; }
CUresult cuMemGetInfo_v2(size_t *free, size_t *total) { *free = 1000; *total = 2000; return 0; }
CUresult cuMemAlloc_v2(CUdeviceptr *at, size_t size) {
    static int count;
    char name[64];
    if (current != 8 || size % (1 << 21)) abort();
    if (getenv("FAKE_CUDA_ROOM") && size > atoll(getenv("FAKE_CUDA_ROOM"))) return 2;
    sprintf(name, "%d-%d", getpid(), count++);
    return map(name, size, 1, at);
}
CUresult cuMemFree_v2(CUdeviceptr at) { note("free"); return unmap(at, 1); }
CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at) {
    if (getenv("FAKE_CUDA_EXPORTS_NOTHING")) return 801;
    for (int n = 0; n < 256; n++)
        if (found[n].at == at) strcpy(handle->reserved, found[n].name);
    return 0;
}
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *at, CUipcMemHandle handle, unsigned flags) {
    if (atoi(handle.reserved) == getpid() || flags != 1) return 201;
    note("open");
    return map(handle.reserved, 0, 0, at);
}
CUresult cuIpcCloseMemHandle(CUdeviceptr at) { note("close"); return unmap(at, 0); }
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == 2 ? "out of memory" : "operation not supported";
    return 0;
}
"""


class FakeCuda:
    """The driver, installed in this process and in the children that it forks.

    Args:
        folder: An empty folder.
        monkeypatch: Of the test.

    Attributes:
        folder: Where the files are.
        uuid: The name of the GPU; tests change it.
        gpus: How many there are; tests change it.
    """

    def __init__(self, folder, monkeypatch):
        library = folder / "libcuda.so.1"
        source = folder / "cuda.c"
        source.write_text(SOURCE)
        command = ["cc", "-w", "-shared", "-fPIC", "-o", str(library), str(source)]
        subprocess.run(command, check=True, timeout=60)
        self.folder = folder / "memory"
        self.folder.mkdir()
        monkeypatch.setenv("FAKE_CUDA", str(self.folder))
        monkeypatch.setattr(cuda, "_LIBRARY", str(library))
        stream = SimpleNamespace(synchronize=lambda: None)
        monkeypatch.setattr(torch.version, "cuda", "fake")
        self.uuid, self.gpus = "GPU-fake", 1
        monkeypatch.setattr(torch.cuda, "is_available", lambda: self.gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: self.gpus)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
        monkeypatch.setattr(device_memory, "device_uuid", lambda _: self.uuid)
        monkeypatch.setattr(device_memory.DeviceBlock, "tensor", _tensor)
        made = layout._source

        def source_of(name, value):
            found = made(name, value)
            return found._replace(device="cuda:0") if name.startswith("gpu") else found

        monkeypatch.setattr(layout, "_source", source_of)
        self.forget()

    def forget(self):
        """Start as a new process does."""
        device_memory._forget()
        cuda._library.cache_clear()
        cuda.Gpu.of.cache_clear()

    def buffers(self):
        """Return the names of the buffers that are there."""
        return sorted(path.name for path in self.folder.glob("*-*"))

    def log(self, pid):
        """Return what a process has called."""
        lines = [line.split() for line in (self.folder / "log").read_text().splitlines()]
        return [what for who, what in lines if int(who) == pid]


def _tensor(block):
    if not len(block):
        return torch.empty(0, dtype=torch.uint8)
    address, _ = block.__cuda_array_interface__["data"]
    memory = (ctypes.c_ubyte * len(block)).from_address(address)
    memory.block = block  # as torch does with what has the interface
    return torch.frombuffer(memory, dtype=torch.uint8)
