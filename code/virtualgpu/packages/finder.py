"""Import a stand-in under its package's name, if the package itself is not installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from virtualgpu.core.assumptions import Assumptions
from virtualgpu.core.errors import NoValue, VirtualGpuError

FOLDER = Path(__file__).parent
# By name of the module: name of the distribution, and the version whose interface is modeled.
PACKAGES = {"flash_attn": ("flash-attn", "2.8.3"), "xformers": ("xformers", "0.0.35"),
            "transformer_engine": ("transformer-engine", "2.11.0"), "apex": ("apex", "0.1")}
# The kernel of torch's attention that Hopper and Blackwell prefer; programs from before PyTorch
# preferred it ran without it.
CUDNN_ATTENTION = "cudnn_attention"
REMOVABLE = (*PACKAGES, CUDNN_ATTENTION)
# Packages that run without one of these, and need more of it than its stand-in has.
RUN_WITHOUT = {"flash_attn": ("diffusers",), "transformer_engine": ("megatron",)}
# The only packages that find this stand-in: it has what they need of it, and others need more.
ONLY_FOR = {"apex": ("megatron",)}
EXTENSIONS = {"apex": ("amp_C", "fused_weight_gradient_mlp_cuda", "scaled_masked_softmax_cuda",
                       "scaled_upper_triang_masked_softmax_cuda")}  # top-level modules of a package


class StandInFinder:
    """A finder at the end of sys.meta_path, where Python asks it for what nobody else has."""

    def __init__(self, assumptions: Assumptions, without: Sequence[str] = ()) -> None:
        """Args:
            assumptions: receives a line if a package runs without a stand-in.
            without: stand-ins that the program must not find.
        """
        self.assumptions = assumptions
        self.told: set[str] = set()  # packages that run without a stand-in
        self.packages = {name: PACKAGES[name] for name in PACKAGES if name not in without}

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        """Return the stand-in of a package, or of a module that it installs beside itself."""
        package = next((one for one, modules in EXTENSIONS.items() if name in modules), name)
        if package not in self.packages:
            return None
        program = importer()
        if program not in ONLY_FOR.get(package, (program,)):
            return None
        if package != name:
            return importlib.util.spec_from_file_location(
                name, FOLDER / package / "extensions" / f"{name}.py")
        if program in RUN_WITHOUT.get(name, ()):
            if program not in self.told:
                self.told.add(program)
                self.assumptions.note(f"{program} does not use {name}: its stand-in lacks "
                                      f"internals that {program} needs")
            return None
        folder = FOLDER / name
        return importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)])

    def find_distributions(self, context: metadata.DistributionFinder.Context
                           ) -> Iterator[metadata.Distribution]:
        """Yield the metadata of stand-ins, so that programs can ask for a version."""
        for module, (name, version) in self.packages.items():
            wanted = context.name
            if module not in ONLY_FOR and (
                    wanted is None or wanted.replace("_", "-").lower() == name):
                yield StandInDistribution(module, name, version)


class TritonWatcher:
    """A finder that lets Triton's kernels refuse to start, by their names."""

    def find_spec(self, name: str, path: Sequence[str] | None = None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        if name != "triton.runtime.jit":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def watched(module: ModuleType) -> None:
                execute(module)
                module.JITFunction.run = refuse_kernel

            spec.loader.exec_module = watched
        return spec


def refuse_kernel(kernel: object, *_: object, **__: object) -> None:
    """Raise NoValue in place of starting a Triton kernel, whose cost and results are unknown."""
    name = getattr(kernel, "__name__", "this")
    own = str(Path(sys.modules["triton"].__file__ or "").parent)
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    raise NoValue(f"{frame.f_code.co_filename}, line {frame.f_lineno}: {name} is a Triton kernel, "
                  "and Triton kernels are not modeled on virtual GPUs; use the program's plain "
                  "PyTorch path, or uninstall triton if the program runs without it")


class StandInDistribution(metadata.Distribution):
    """Name and version of a stand-in."""

    def __init__(self, module: str, name: str, version: str) -> None:
        self.texts = {"METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                      "top_level.txt": module}

    def read_text(self, filename: str) -> str | None:
        return self.texts.get(filename)

    def locate_file(self, path: object) -> Path:
        return FOLDER / str(path)


def importer() -> str:
    """Return the package whose import statement is running."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name != __name__ and not name.startswith("importlib"):
            return name.partition(".")[0]
        frame = frame.f_back
    return ""


def install(assumptions: Assumptions, without: Sequence[str] = ()) -> None:
    """Make the stand-ins importable in this process.

    Args:
        assumptions: receives a line if a package runs without a stand-in.
        without: names of stand-ins to leave out.
    """
    sys.meta_path.insert(0, TritonWatcher())
    sys.meta_path.append(StandInFinder(assumptions, without))


def check(without: Sequence[str]) -> None:
    """Raise VirtualGpuError unless these names can be left out."""
    for name in without:
        if name not in REMOVABLE:
            raise VirtualGpuError(f"--without {name}: nothing with this name can be left out; "
                                  f"the choices are {', '.join(REMOVABLE)}")


def missing_part(error: ImportError) -> str | None:
    """Return one line about a part of a package that its stand-in lacks, or None.

    Args:
        error: what the import statement raised.
    """
    name = error.name or ""
    package = name.partition(".")[0]
    module = sys.modules.get(package)
    if package not in PACKAGES or not str(getattr(module, "__file__", "")).startswith(str(FOLDER)):
        return None
    part = str(error).partition("cannot import name ")[2].split("'")
    what = f"{name}.{part[1]}" if len(part) > 1 else name
    return (f"{what} is not part of virtualrun's model of {package}; docs/virtualrun.md lists "
            f"what is, and --without {package} runs the program as if it were not installed")
