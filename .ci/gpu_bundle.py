"""Packs what `.ci/gpu` needs on a machine with a GPU and without a network, into one archive.

usage: gpu_bundle.py WHEEL ARCHIVE

The machine has Python 3.12, torch with CUDA, numpy, and the common packages for tests. The archive
has `site`, a folder for `PYTHONPATH` with shoal and what the machine lacks, the tests, and the
benchmark of one GPU.
"""

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

MOST = 60 * 2**20
"""Maximum size of the archive in bytes: what can be carried to the machine."""
PYTHON = "3.12"
PLATFORM = "x86_64-manylinux_2_34"
PACKAGES = (
    "ray", "pydantic", "pydantic-core", "annotated-types", "typing-inspection", "jsonschema",
    "jsonschema-specifications", "referencing", "rpds-py", "cloudpickle", "pytest-asyncio",
    "omegaconf", "gymnasium", "farama-notifications", "requests", "urllib3", "idna", "certifi",
    "charset-normalizer", "xxhash",
)  # fmt: skip
# The parts of Ray that no job of shoal uses: other languages, its libraries, the dashboard's pages.
UNUSED_IN_RAY = (
    "jars", "dashboard/client", "data", "llm", "rllib", "serve", "train", "tune"
)  # fmt: skip


def main(wheel: Path, archive: Path) -> None:
    """Make the archive."""
    with TemporaryDirectory(prefix="shoal-bundle-") as made:
        stage = Path(made)
        site = stage / "site"
        install(wheel, site)
        for part in UNUSED_IN_RAY:
            shutil.rmtree(site / "ray" / part)
        shutil.copytree("tests", stage / "tests", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy("pyproject.toml", stage)
        (stage / "benches").mkdir()
        shutil.copy("benches/gpu_tensors.py", stage / "benches")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "w:xz", preset=6) as tar:
            for path in sorted(stage.iterdir()):
                tar.add(path, path.name)
    size = archive.stat().st_size
    print(f"{archive}: {size / 2**20:.1f} MiB")  # noqa: T201  (a program's output)
    if size > MOST:
        sys.exit(f"gpu_bundle.py: expected at most {MOST / 2**20:.0f} MiB")


def install(wheel: Path, site: Path) -> None:
    """Install shoal and the packages for the machine's Python into a folder."""
    command = [
        str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:",
        "--constraint", "requirements.lock", "--python-version", PYTHON,
        "--python-platform", PLATFORM, "--target", str(site), str(wheel), *PACKAGES,
    ]  # fmt: skip
    subprocess.run(command, check=True)  # noqa: S603  (a fixed command)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
