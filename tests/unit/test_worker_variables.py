"""Variables that a worker's process gets after the interpreter and libraries have read others."""

import contextlib
import locale
import logging
import os
import sys
import tempfile
import time
from types import ModuleType

import pytest

from shoal.bootstrap.variables import set_variables

NAMES = (
    "TZ", "TMPDIR", "TEMP", "TMP", "LC_ALL", "LC_CTYPE", "LANG", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "NUMEXPR_MAX_THREADS",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _restored():
    before, ctype = tempfile.tempdir, locale.setlocale(locale.LC_CTYPE)
    with pytest.MonkeyPatch.context() as patch:
        for name in NAMES:
            # `delenv` alone would not restore a variable that the test sets.
            patch.setenv(name, "")
            patch.delenv(name)
        for name in ("torch", "numpy", "numexpr"):
            patch.delitem(sys.modules, name, raising=False)
        yield
    time.tzset()
    tempfile.tempdir = before
    locale.setlocale(locale.LC_CTYPE, ctype)


def test_variables_are_set_and_removed():
    os.environ["LC_CTYPE"] = "C"
    set_variables({"TZ": "UTC", "LC_CTYPE": None, "LANG": None})
    assert os.environ["TZ"] == "UTC"
    assert not {"LC_CTYPE", "LANG"} & set(os.environ)


def test_a_time_zone_counts_at_once():
    set_variables({"TZ": "UTC"})
    assert time.localtime(0).tm_hour == 0
    set_variables({"TZ": "ABC-5"})
    assert (time.localtime(0).tm_hour, time.tzname[0]) == (5, "ABC")
    set_variables({"TZ": None})
    assert time.tzname[0] != "ABC"


@pytest.mark.parametrize("name", ["TMPDIR", "TEMP", "TMP"])
def test_a_temporary_folder_counts_at_once(tmp_path, name):
    assert tempfile.gettempdir() != str(tmp_path)
    set_variables({name: str(tmp_path)})
    assert tempfile.gettempdir() == str(tmp_path)


def test_a_temporary_folder_that_a_program_has_chosen_stays(tmp_path):
    tempfile.tempdir = str(tmp_path)
    set_variables({"TZ": "UTC"})
    assert tempfile.gettempdir() == str(tmp_path)


def test_the_character_type_of_the_c_library_follows_the_locale():
    with contextlib.suppress(locale.Error):
        locale.setlocale(locale.LC_CTYPE, "C")
    set_variables({"LC_ALL": "C.UTF-8"})
    assert locale.setlocale(locale.LC_CTYPE) == "C.UTF-8"
    set_variables({"LC_ALL": "C"})  # would make ASCII the encoding of files
    assert locale.setlocale(locale.LC_CTYPE) == "C.UTF-8"
    set_variables({"LC_ALL": "xx_XX.UTF-8"})
    assert locale.setlocale(locale.LC_CTYPE) == "C.UTF-8"


@pytest.fixture
def threads(monkeypatch):
    """The numbers of threads that a torch which is already loaded gets."""
    given = []
    torch = ModuleType("torch")
    torch.set_num_threads = given.append
    monkeypatch.setitem(sys.modules, "torch", torch)
    return given


@pytest.mark.parametrize(
    ("variables", "number"),
    [
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3,2"}, 3),
        ({"MKL_NUM_THREADS": "2"}, 2),
        ({"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "3"}, 3),
    ],
)
def test_a_torch_that_is_loaded_gets_the_number_of_threads(threads, caplog, variables, number):
    with caplog.at_level(logging.WARNING, "shoal"):
        set_variables(variables)
    assert threads == [number]
    assert not caplog.records


@pytest.mark.parametrize("value", ["many", "0"])
def test_a_number_of_threads_that_torch_cannot_have_is_a_warning(threads, caplog, value):
    with caplog.at_level(logging.WARNING, "shoal"):
        set_variables({"OMP_NUM_THREADS": value})
    assert threads == []
    assert "OMP_NUM_THREADS: no effect on torch" in caplog.text


def test_a_library_that_has_read_its_variables_is_named(monkeypatch, caplog):
    with caplog.at_level(logging.WARNING, "shoal"):
        set_variables({"NUMEXPR_MAX_THREADS": "2"})
        assert not caplog.records
        monkeypatch.setitem(sys.modules, "numexpr", ModuleType("numexpr"))
        set_variables({"NUMEXPR_MAX_THREADS": "2"})  # the value that it has read
        assert not caplog.records
        set_variables({"NUMEXPR_MAX_THREADS": "3", "MY_NUMEXPR": "1"})
    assert "NUMEXPR_MAX_THREADS: no effect on numexpr, which was loaded" in caplog.text
    assert "MY_NUMEXPR" not in caplog.text
