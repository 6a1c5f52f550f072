# setup.py: builds lazyeng._C from csrc/ against the PyTorch that is installed. All that is not
# about building is in pyproject.toml.
#
#   pip install --no-build-isolation .   (the build must see the torch that will be used: the C++
#                                         interface of torch differs in each minor version)
#
# MAX_JOBS=n compilers at once (default: one for each core, and 2 GiB); LAZYENG_WERROR=1 turns
# warnings into errors; LAZYENG_SANITIZE=address (or several, or thread) compiles for that sanitizer
# (tools/sanitize.sh);
# LAZYENG_CHECKED=1 has accesses beyond the end of a container of the C++ library end the process.
import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import setuptools
from setuptools import find_packages, setup
from setuptools.command.build_py import build_py as original_build_py

OLDEST_SETUPTOOLS = 77  # as in pyproject.toml, which an unisolated build does not read

ROOT = Path(__file__).resolve().parent
check_torch = runpy.run_path(str(ROOT / "lazyeng" / "_check_torch.py"))

# Importing torch loads its plugins: a lazyeng of another build would stop its own repair.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
os.environ["PATH"] += f"{os.pathsep}{Path(sys.executable).parent}"  # (pip's ninja may be there)
machine = runpy.run_path(str(ROOT / "lazyeng" / "_machine.py"))
jobs = min(machine["cores"](), (machine["memory"]() or 4 << 30) // (2 << 30))
if not os.environ.get("MAX_JOBS", "").strip("0").isdecimal():  # (for ninja 0 is no bound)
    os.environ["MAX_JOBS"] = str(max(1, jobs))

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    sys.exit(
        f"{check_torch['MISSING']}\n"
        "Then build without isolation: pip install --no-build-isolation ."
    )
if reason := check_torch["unsupported"](torch.__version__):
    sys.exit(reason)

if int(setuptools.__version__.split(".")[0]) < OLDEST_SETUPTOOLS:
    sys.exit(
        f"lazyeng needs setuptools {OLDEST_SETUPTOOLS} or newer, and {setuptools.__version__} is "
        f"installed: pip install 'setuptools>={OLDEST_SETUPTOOLS}'"
    )
if sys.platform != "linux":
    sys.exit(f"lazyeng needs Linux, and this is {sys.platform}")

from torch.utils.cpp_extension import (  # noqa: E402
    BuildExtension,
    CppExtension,
    get_cxx_compiler,
    include_paths,
)

# What BuildExtension defines for each file; a compiled header must have been made with the same.
MACROS = ("TORCH_API_INCLUDE_EXTENSION_H", "TORCH_EXTENSION_NAME=_C")

# Bytes of the files that are compiled together: some seconds for one compiler.
MOST_TOGETHER = 40_000


class build_py(original_build_py):  # noqa: N801
    """Anew: modules of an earlier build that are gone since must not come into a wheel."""

    def run(self):
        if not self.editable_mode:
            shutil.rmtree(Path(self.build_lib, "lazyeng"), ignore_errors=True)
        super().run()


class build_ext(BuildExtension):  # noqa: N801 (the name of the command)
    """Torch's, which also keeps its object files and records what it built against."""

    def finalize_options(self):
        super().finalize_options()
        # One folder for each ABI. An editable install would compile everything in a temporary one.
        self.build_temp = str(
            ROOT / "build" / f"{sys.implementation.cache_tag}-torch-{torch.__version__}"
        )
        self.force = True  # ninja, which knows the headers, decides what is out of date

    def build_extensions(self):
        compiler = shlex.split(get_cxx_compiler())[0]
        if not shutil.which(compiler):
            sys.exit(
                f"lazyeng needs a C++20 compiler, and {compiler!r} was not found: install g++, or "
                "set CXX"
            )
        (extension,) = self.extensions
        if header := self.precompiled(ROOT / "csrc" / "torch_headers.h", extension):
            extension.extra_compile_args["cxx"] += ["-include", str(header)]
        extension.sources = [self.joined(files) for files in together(extension.sources)]
        super().build_extensions()

    def joined(self, files):
        """A file that includes these. Before a compiler comes to a file of ours, torch's headers
        have cost it three seconds, also where they are precompiled."""
        if len(files) == 1:
            return files[0]
        first, last = Path(files[0]), Path(files[-1])
        path = Path(self.build_temp, "joined", first.parent, f"{first.stem}-{last.stem}.cpp")
        # (What would be said of a header, whose types must not have parts without linkage.)
        text = '#pragma GCC diagnostic ignored "-Wsubobject-linkage"\n'
        text += "".join(f'#include "{file}"\n' for file in files)
        if not path.exists() or path.read_text() != text:  # (ninja looks at its time)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(path.relative_to(ROOT))

    def precompiled(self, header, extension):
        """A copy of the header with its compiled form beside it, where compilers look for one.

        It halves the time of a build, and nothing depends on it: None if there is no such form. A
        compiler that cannot use it, as other flags were given, reads the header instead.
        """
        copy = Path(self.build_temp) / header.name
        compiled = copy.with_name(f"{copy.name}.gch")
        includes = [f"-I{path}" for path in self.include_dirs + extension.include_dirs]
        flags = extension.extra_compile_args["cxx"] + [f"-D{name}" for name in MACROS]
        command = shlex.split(get_cxx_compiler()) + self.compiler.compiler_so[1:] + includes + flags
        command += ["-x", "c++-header", str(copy), "-o", str(compiled)]
        made_by = copy.with_suffix(".command")  # by another command, it would not fit: made anew
        recipe = f"{command}\n{header.read_text()}"
        if compiled.exists() and made_by.exists() and made_by.read_text() == recipe:
            return copy
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(header, copy)
        made_by.unlink(missing_ok=True)
        print(f"precompiling {header.relative_to(ROOT)}", flush=True)
        if subprocess.run(command, check=False).returncode:
            compiled.unlink(missing_ok=True)
            return None
        made_by.write_text(recipe)
        return copy

    def run(self):
        super().run()
        info = Path(self.get_ext_fullpath("lazyeng._C")).parent / "_build_info.py"
        info.write_text(
            "# Written by setup.py: what lazyeng._C was built against.\n"
            f'TORCH_VERSION = "{torch.__version__}"\n'
        )


def together(sources):
    """The files of a folder in groups; the kernels for several instruction sets each alone. Files
    of one group share their unnamed namespaces: a name that two of them define is an error."""
    groups, left = [], 0
    for file in sources:
        size = (ROOT / file).stat().st_size
        alone = Path(file).name.startswith("tile_kernels_")
        if alone or size > left or Path(groups[-1][0]).parent != Path(file).parent:
            groups.append([])
            left = MOST_TOGETHER
        groups[-1].append(file)
        left = 0 if alone else left - size
    return groups


def by_folder(path):
    """A folder's own files stand together, those of its folders behind them."""
    return path.parent, path.name


def extension():
    flags = ["-std=c++20", "-O2", "-g0", "-DNDEBUG", "-fvisibility=hidden", "-Wall", "-Wextra"]
    flags.append("-Wno-maybe-uninitialized")  # gcc 12 sees ghosts in c10::SmallVector, inlined here
    if os.environ.get("LAZYENG_WERROR") == "1":
        flags.append("-Werror")
    if os.environ.get("LAZYENG_CHECKED") == "1":
        flags.append("-D_GLIBCXX_ASSERTIONS")
    sanitize = []
    if name := os.environ.get("LAZYENG_SANITIZE"):
        sanitize = [f"-fsanitize={name}"]
        # (-g1: lines, and half the time of a build with -g.)
        flags += [*sanitize, "-O1", "-g1", "-fno-omit-frame-pointer", "-D_GLIBCXX_ASSERTIONS"]
    flags += [f"-isystem{path}" for path in include_paths()]  # no warnings about torch's headers
    return CppExtension(
        "lazyeng._C",
        [str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("csrc/**/*.cpp"), key=by_folder)],
        include_dirs=[str(ROOT)],
        extra_compile_args={"cxx": flags},
        extra_link_args=sanitize,
    )


# The folder triton_kernels/ is the package lazyeng.triton_kernels.
kernels = [
    "triton_kernels",
    *(f"triton_kernels.{name}" for name in find_packages("triton_kernels")),
]

# The C++ interface of torch differs in each minor version: pip shall not put what was built for
# one beside another.
major, minor = check_torch["minor"](torch.__version__)

setup(
    install_requires=[f"torch=={major}.{minor}.*", "numpy"],
    ext_modules=[extension()],
    cmdclass={"build_ext": build_ext, "build_py": build_py},
    py_modules=["lazyeng_autoload", "pytest_lazyeng"],
    packages=find_packages(include=["lazyeng", "lazyeng.*"])
    + [f"lazyeng.{name}" for name in kernels],
    package_dir={"lazyeng.triton_kernels": "triton_kernels"},
)
