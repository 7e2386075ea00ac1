"""Empty CUDA libraries, so that a CUDA build of torch can be imported without gigabytes of them.

Where there is no GPU, torch calls none of their functions: each one returns an error here. Only
libcudart registers kernels while torch is loaded, and must be the real one.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path

REAL = "libcudart"
UNVERSIONED = "libnccl.so.2"  # libtorch_cuda needs it, and so finds the others' functions in it


def write(torch: Path, folder: Path) -> list[str]:
    """Compile the libraries that a torch without them needs.

    Args:
        torch: the package's folder.
        folder: where the libraries go, for LD_LIBRARY_PATH.

    Returns their names; none for a CPU build.
    """
    libraries = [*torch.glob("lib/*.so*"), *torch.glob("_C*.so")]
    needed: dict[str, set[str]] = defaultdict(set)  # by library: the versions of its functions
    undefined: set[str] = set()
    defined: set[str] = set()
    for library in libraries:
        text = subprocess.run(["readelf", "--wide", "--dynamic", "--version-info", "--dyn-syms",
                               library], text=True, capture_output=True, check=True).stdout
        for name in re.findall(r"NEEDED.*\[(.*)\]", text):
            needed[name] |= set()
        for block in re.split(r"Version: \d+ +File: ", text)[1:]:
            needed[block.split()[0]] |= set(re.findall(r"Name: (\S+) ", block))
        for where, name in re.findall(r"^ +\d+: \w+ +\d+ \w+ +\w+ +\w+ +(\w+) (\S+)", text, re.M):
            (undefined if where == "UND" else defined).add(name)
    own = {library.name for library in libraries}
    missing = {name: versions for name, versions in needed.items() if name not in own
               and re.match("lib(cu|nv|nccl)", name) and not name.startswith(REAL)}
    functions = assigned(undefined, {name.split("@")[0] for name in defined}, missing)
    folder.mkdir(exist_ok=True)
    for name in missing:
        compile_one(folder, name, functions[name])
    return sorted(missing)


def assigned(undefined: set[str], defined: set[str], missing: dict[str, set[str]]
             ) -> dict[str, dict[str, set[str]]]:
    """Return the functions of each library, by their version.

    Args:
        undefined: symbols that torch's libraries use, as readelf prints them.
        defined: those that one of them defines.
        missing: libraries to make, and the versions of their functions.
    """
    owner = {version: name for name, versions in missing.items() for version in versions}
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for symbol in undefined:
        name, _, version = symbol.partition("@")
        if name in defined:
            continue
        if version in owner:
            found[owner[version]][version].add(name)
        elif not version and re.match("cu|nccl|pncc|nv", name):
            found[UNVERSIONED][""].add(name)
    return found


def compile_one(folder: Path, name: str, functions: dict[str, set[str]]) -> None:
    """Make one library.

    Args:
        folder: where.
        name: its file name.
        functions: what it defines, by version.
    """
    source = "".join(f"int {function}(void) {{ return 1; }}\n"
                     for some in functions.values() for function in sorted(some))
    script = "".join(f"{version} {{ global: {'; '.join(sorted(some))}; }};\n"
                     for version, some in functions.items() if version)
    command = ["gcc", "-shared", "-fPIC", "-w", "-fno-builtin", "-x", "c", "-", "-o",
               str(folder / name), f"-Wl,-soname,{name}"]
    if script:
        (folder / "versions").write_text(script)
        command.append(f"-Wl,--version-script={folder / 'versions'}")
    subprocess.run(command, input=source, text=True, check=True)
