"""A CA of TLS, and the files of nodes whose certificates it signed."""

import shutil
import subprocess
from pathlib import Path

import pytest

_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """A CA, made by the program `openssl`.

    Args:
        folder: The folder for its files.
        name: Its name.
    """

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("certificates need the program openssl")
        self._folder = folder
        self._name = name
        self._run(
            "req", "-x509", *_NEW_KEY, "-keyout", self._file("key"), "-out", self._file("pem")
        )

    def files(self, ip: str) -> tuple[str, str, str]:
        """Return the files of a node with an IP address: certificate, key and CA."""
        key, request, certificate = (self._file(f"{ip}.{end}") for end in ("key", "csr", "pem"))
        extensions = self._file(f"{ip}.ext")
        Path(extensions).write_text(f"subjectAltName=IP:{ip}\n")
        self._run("req", "-new", *_NEW_KEY, "-keyout", key, "-out", request)
        signs = ("-CA", self._file("pem"), "-CAkey", self._file("key"), "-CAcreateserial")
        self._run(
            "x509", "-req", "-in", request, *signs, "-extfile", extensions, "-out", certificate
        )
        return certificate, key, self._file("pem")

    def _file(self, end: str) -> str:
        return str(self._folder / f"{self._name}.{end}")

    def _run(self, command: str, *arguments: str) -> None:
        named = ("-subj", f"/CN={self._name}") if command == "req" else ()
        subprocess.run(["openssl", command, *arguments, *named], check=True, capture_output=True)
