# tests/test_packaging.py: building, installing and importing lazyeng, and what is said when that
# cannot work.
"""Installs are made of a copy of this checkout whose csrc/ has trivial files: the real one takes
minutes, and setup.py is what is tested here."""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import torch

from tests.support.processes import alone

ROOT = Path(__file__).parents[1]
TRIVIAL_BINDINGS = """\
#include <Python.h>
int answer();
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", nullptr, -1, nullptr,
                             nullptr, nullptr, nullptr, nullptr};
PyMODINIT_FUNC PyInit__C() {
  PyObject* self = PyModule_Create(&module);
  PyModule_AddIntConstant(self, "answer", answer());
  return self;
}
"""
ANSWER = """\
#include "csrc/answer.h"
int answer() { return kAnswer; }
"""
TRIVIAL_INIT = """\
__version__ = "0.1.0"
from lazyeng._check_torch import check
check()
from lazyeng._C import answer
"""
SHOW = """\
import lazyeng, lazyeng.triton_kernels
print(lazyeng.answer, lazyeng.__file__, lazyeng.triton_kernels.__file__)
"""


def python(*args, path=(), cwd=None, interpreter=sys.executable):
    """Runs Python with `path` in front of sys.path; for its output, its errors and its status."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [str(interpreter), *map(str, args)]
    return subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=200, check=False
    )


def succeed(*args, **kwargs):
    done = python(*args, **kwargs)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path):
    copy = tmp_path / "checkout"
    for folder in ("lazyeng", "triton_kernels"):
        shutil.copytree(
            ROOT / folder,
            copy / folder,
            ignore=shutil.ignore_patterns("__pycache__", "_build_info.py", "*.so"),
        )
    for name in ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "lazyeng_autoload.py"):
        shutil.copy(ROOT / name, copy)
    (copy / "lazyeng" / "__init__.py").write_text(TRIVIAL_INIT)
    (copy / "csrc" / "run").mkdir(parents=True)
    (copy / "csrc" / "bindings.cpp").write_text(TRIVIAL_BINDINGS)
    (copy / "csrc" / "torch_headers.h").write_text("#include <vector>\n")
    (copy / "csrc" / "answer.h").write_text("constexpr int kAnswer = 1;\n")
    # The files of a folder are compiled together if they are small.
    (copy / "csrc" / "run" / "answer.cpp").write_text(ANSWER)
    (copy / "csrc" / "run" / "more.cpp").write_text("int more() { return 1; }\n")
    (copy / "csrc" / "run" / "size.cpp").write_text("//" + "-" * 40_000 + "\n")
    return copy


@pytest.fixture
def environment(tmp_path):
    """The interpreter of an empty virtual environment that sees the packages of this one."""
    succeed("-m", "venv", "--without-pip", tmp_path / "venv")
    interpreter = tmp_path / "venv" / "bin" / "python"
    site = succeed(
        "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", interpreter=interpreter
    ).strip()
    # A plain line of a .pth file: the .pth files of the other environment, and so its editable
    # lazyeng, are not read.
    (Path(site) / "parent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return interpreter


def install(interpreter, *args):
    succeed(
        "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--force-reinstall", *args,
        interpreter=interpreter,
    )  # fmt: skip


# The installed package


def test_imports_from_anywhere(tmp_path):
    succeed("-c", "import lazyeng", cwd=tmp_path)
    succeed("-c", "import lazyeng.triton_kernels", cwd=tmp_path)
    succeed("-c", "import torch, sys; assert 'lazyeng' in sys.modules", cwd=tmp_path)


def test_torch_finds_the_backend():
    names = [point.value for point in importlib.metadata.entry_points(group="torch.backends")]
    assert names.count("lazyeng_autoload:load") == 1


def test_version_is_that_of_the_distribution():
    import lazyeng

    assert lazyeng.__version__ == importlib.metadata.version("lazyeng")


def test_build_info_names_the_torch_it_was_built_against():
    info = importlib.import_module("lazyeng._build_info")
    assert info.TORCH_VERSION.split(".")[:2] == torch.__version__.split(".")[:2]


def test_a_build_requires_the_minor_version_of_torch_that_it_is_for():
    major, minor = torch.__version__.split(".")[:2]
    assert f"torch=={major}.{minor}.*" in importlib.metadata.requires("lazyeng")


# Installing


def test_wheel_holds_the_package_and_nothing_else(checkout, tmp_path):
    succeed(
        "-m", "pip", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", tmp_path, checkout
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in ("__init__.py", "py.typed", "_build_info.py", f"_C{suffix}"):
        assert f"lazyeng/{name}" in names
    assert "lazyeng/triton_kernels/__init__.py" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {
        "lazyeng",
        "lazyeng_autoload.py",
    }
    assert not (checkout / "lazyeng" / "_build_info.py").exists()


def test_installed_kernels_are_a_subpackage(checkout, environment, tmp_path):
    install(environment, checkout)
    answer, package, kernels = succeed("-c", SHOW, interpreter=environment, cwd=tmp_path).split()
    assert answer == "1"
    assert Path(kernels).parent == Path(package).parent / "triton_kernels"
    assert checkout not in Path(package).parents


def test_editable_kernels_are_a_subpackage(checkout, environment, tmp_path):
    """From elsewhere, and in the checkout."""
    install(environment, "--editable", checkout)
    for folder in (tmp_path, checkout):
        shown = succeed("-c", SHOW, interpreter=environment, cwd=folder)
        answer, package, kernels = shown.split()
        assert answer == "1"
        assert Path(package) == checkout / "lazyeng" / "__init__.py"
        assert Path(kernels) == checkout / "triton_kernels" / "__init__.py"


def test_a_stale_build_is_repaired_by_another(checkout, environment, tmp_path):
    """One of before a header was changed, and that was made for another torch: neither stops it."""
    install(environment, "--editable", checkout)
    (joined,) = checkout.glob("build/*/joined/csrc/run/*.cpp")
    assert joined.name == "answer-more.cpp"
    (checkout / "csrc" / "answer.h").write_text("constexpr int kAnswer = 2;\n")
    (checkout / "lazyeng" / "_build_info.py").write_text('TORCH_VERSION = "2.10.0"\n')
    assert python("-c", SHOW, interpreter=environment, cwd=tmp_path).returncode != 0
    install(environment, "--editable", checkout)
    assert succeed("-c", SHOW, interpreter=environment, cwd=tmp_path).split()[0] == "2"


# What is said when it cannot work


@pytest.fixture
def other_torch(tmp_path):
    """Makes a folder to put on sys.path, in which torch is of another version, or None: missing."""

    def make(version):
        folder = tmp_path / "other_torch"
        (folder / "torch").mkdir(parents=True)
        missing = "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"
        text = missing if version is None else f"__version__ = {version!r}\n"
        (folder / "torch" / "__init__.py").write_text(text)
        return folder

    return make


NO_TORCH = "lazyeng needs PyTorch 2.11 to 2.15, and no torch is installed"
OLD_TORCH = "lazyeng supports PyTorch 2.11 to 2.15, and torch 2.10.1+cpu is installed"
NEW_TORCH = "lazyeng supports PyTorch 2.11 to 2.15, and torch 2.16.0 is installed"
UNUSABLE = [(None, NO_TORCH), ("2.10.1+cpu", OLD_TORCH), ("2.16.0", NEW_TORCH)]


@pytest.mark.parametrize(("version", "message"), UNUSABLE)
def test_build_without_a_usable_torch(other_torch, checkout, version, message):
    done = python("setup.py", "build_ext", path=[other_torch(version)], cwd=checkout)
    assert done.returncode != 0
    assert done.stderr.startswith(message)  # and no traceback


@pytest.mark.parametrize(("version", "message"), UNUSABLE)
def test_import_without_a_usable_torch(other_torch, checkout, version, message):
    done = python("-c", "import lazyeng", path=[other_torch(version), checkout])
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {message}")
    assert "The above exception" not in done.stderr
    assert "During handling" not in done.stderr


@pytest.fixture
def package_like(tmp_path):
    """A copy of lazyeng's Python files, with this build info and a _C that cannot be loaded."""

    def make(build_info, with_extension):
        folder = tmp_path / "copied"
        ignore = shutil.ignore_patterns("__pycache__", "_build_info.py", "*.so")
        shutil.copytree(ROOT / "lazyeng", folder / "lazyeng", ignore=ignore)
        if build_info is not None:
            (folder / "lazyeng" / "_build_info.py").write_text(f"TORCH_VERSION = {build_info!r}\n")
        if with_extension:
            suffix = sysconfig.get_config_var("EXT_SUFFIX")
            (folder / "lazyeng" / f"_C{suffix}").write_bytes(b"not a library")
        return folder

    return make


def import_message(folder):
    done = python("-c", "import lazyeng", path=[folder], cwd=folder)
    assert done.returncode != 0
    return done.stderr.splitlines()[-1]


def test_import_of_a_build_for_another_torch(package_like):
    message = import_message(package_like("2.12.1+cu130", with_extension=True))
    assert message.startswith(
        f"ImportError: lazyeng was built for torch 2.12.1+cu130, and torch {torch.__version__} is"
    )
    assert "pip install --no-build-isolation" in message


@pytest.mark.parametrize("build_info", [None, torch.__version__])
def test_import_of_what_is_not_built(package_like, build_info):
    # With the editable install in sight, the copy must not borrow the extension of the original.
    message = import_message(package_like(build_info, with_extension=False))
    assert message.startswith("ImportError: lazyeng._C is not built for this Python: run `pip")


def test_import_in_a_source_folder_that_is_not_built(checkout):
    """Where lazyeng is installed, too: the sources come first."""
    done = python("-c", "import lazyeng", path=[checkout], cwd=checkout)
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"ImportError: {checkout} is lazyeng's source folder, and has no")
    assert "run the program elsewhere" in message and "--editable ." in message


@pytest.mark.parametrize(
    ("build_info", "says"),
    [
        (torch.__version__, "lazyeng._C cannot be loaded ("),
        ("garbage", "lazyeng was built for torch garbage, and"),
        ("", "lazyeng was built for torch (unknown), and"),
    ],
)
def test_what_cannot_be_loaded_does_not_take_torch_along(package_like, build_info, says):
    folder = package_like(build_info, with_extension=True)
    assert import_message(folder).startswith(f"ImportError: {says}")
    done = python(
        "-c", "import torch; print(torch.ones(2).sum().item())", path=[folder], cwd=folder
    )
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
    assert f"RuntimeWarning: lazyeng is not loaded: {says}" in done.stderr


def test_wheels_have_no_modules_that_are_gone(checkout, tmp_path):
    (checkout / "lazyeng" / "gone.py").write_text("")
    build = ("setup.py", "-q", "build_py")
    succeed(*build, cwd=checkout)
    (checkout / "lazyeng" / "gone.py").unlink()
    succeed(*build, cwd=checkout)
    built = [path.name for path in checkout.glob("build/lib*/lazyeng/*.py")]
    assert "config.py" in built and "gone.py" not in built


def test_torch_can_be_imported_beside_a_build_for_another(package_like):
    folder = package_like("2.12.1+cu130", with_extension=True)
    code = "import torch; print(torch.ones(2).sum().item())"
    done = python("-c", code, path=[folder], cwd=folder)
    assert (done.returncode, done.stdout) == (0, "2.0\n"), done.stderr
    assert "RuntimeWarning: lazyeng is not loaded: lazyeng was built for torch 2.12" in done.stderr


def test_build_without_a_compiler(checkout, monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    done = python("setup.py", "build_ext", cwd=checkout)
    assert done.returncode != 0
    wanted = "lazyeng needs a C++20 compiler, and '/nonexistent/c++' was not found: install g++"
    assert done.stderr.splitlines()[-1].startswith(wanted)


# The import rules


def check_imports(root):
    done = python(ROOT / "tools" / "check_imports.py", root)
    return done.returncode, done.stdout.splitlines()


def test_import_rules_hold_here():
    assert check_imports(ROOT) == (0, ["import rules: 0 faults"])


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("lazyeng/errors.py", "from lazyeng.tensor import LazyTensor\n", "a layer above"),
        ("lazyeng/config.py", "def f():\n    from . import mode\n", "a layer above"),
        ("lazyeng/mode.py", "import lazyeng.tensor\n", "import each other"),
        ("csrc/engine/op.h", "#include <torch/torch.h>\n", "only the standard library"),
        (
            "csrc/engine/op.h",
            '#include "csrc/run/node.h"\n',
            "csrc/engine may not include csrc/run",
        ),
        ("csrc/run/node.h", '#include "csrc/record/call.h"\n', "csrc/run may not include"),
        ("csrc/stacks/table.h", "#include <ATen/ATen.h>\n", "only Python's headers"),
        ("csrc/run/node.h", '#include "op.h"\n', "not a file relative to the repository root"),
    ],
)
def test_import_rules_are_checked(tmp_path, name, text, fault):
    files = {
        "lazyeng/tensor.py": "from lazyeng import errors, mode\n",
        "lazyeng/errors.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n"
        "    from lazyeng import tensor\n",
        "lazyeng/mode.py": "from lazyeng import _C, errors\n",
        "csrc/engine/op.h": "#include <vector>\n#include <pthread.h>\n",
        "csrc/run/node.h": '#include "csrc/engine/op.h"\n',
        "csrc/record/call.h": '#include "csrc/run/node.h"\n#include <ATen/ATen.h>\n',
        "csrc/stacks/table.h": "#include <Python.h>\n",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    assert check_imports(tmp_path) == (0, ["import rules: 0 faults"])
    (tmp_path / name).write_text(text)
    status, lines = check_imports(tmp_path)
    assert status == 1
    assert lines[0].startswith(f"{name}:")
    assert fault in lines[0]


def test_an_import_that_has_failed_is_not_repeated_in_part():
    done = alone("""
        import torch
        torch.utils.rename_privateuse1_backend("other")
        for _ in range(2):
            try:
                import lazyeng
                print("imported")
            except Exception as error:
                print(type(error).__name__, error.__cause__ is not None)
    """, TORCH_DEVICE_BACKEND_AUTOLOAD="0")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["RuntimeError False", "ImportError True"]
