"""From a fresh clone to a running `lab` or test suite; needs nothing but a Python 3.

python3 tools/bootstrap.py COMMAND [ARGUMENT ..]     run COMMAND of the checkout's .venv

Makes .venv from requirements.lock first, or brings it up to date. Kept to old syntax, so that an
unsuitable Python can still say what to install.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
STAMP = os.path.join(VENV, "complete")
LOCK = os.path.join(ROOT, "requirements.lock")
# Python's own pip is older: with 200 packages, it takes half as long again.
PIP = "pip>=26,<27"
OLDEST, NEWEST = (3, 11), (3, 13)
# Folders that the course does not import, and half of all modules. Should somebody import one,
# Python compiles it then.
UNUSED = ("/(tests?|fontTools|narwhals|networkx|plotly|sympy/(physics|stats)|"
          r"torch/(_inductor|testing)|transformers/models/(?!auto/|gpt2/)\w+)/")


def stop(message):
    sys.exit("error: " + message)


def suits(python):
    """Return True if the course supports this interpreter's version."""
    ask = "import sys; print(*sys.version_info[:2])"
    try:
        out = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, check=True,
                             stderr=subprocess.DEVNULL).stdout
    except (OSError, subprocess.CalledProcessError):
        return False
    return OLDEST <= tuple(int(part) for part in out.split()) <= NEWEST


def find_python():
    versions = [f"python3.{minor}" for minor in (11, 12, 13)]
    for name in [sys.executable, *versions]:
        path = shutil.which(name)
        if path and suits(path):
            return os.path.realpath(path)  # never the .venv that is about to be made again
    return stop(
        f"Python {sys.version_info[0]}.{sys.version_info[1]} is not taken, and there is no Python "
        "3.11 to 3.13 on the PATH.\n"
        "On Debian and Ubuntu: sudo apt-get install python3.11 python3.11-venv\n"
        "Or use the container: see docker/")


def wanted_stamp(python):
    """Changes whenever the environment would come out different."""
    digest = hashlib.sha256()
    for name in (LOCK, os.path.join(ROOT, "pyproject.toml")):
        with open(name, "rb") as file:
            digest.update(file.read())
    # The editable install lists the packages that were there when it was made.
    code = os.path.join(ROOT, "code")
    packages = [name for name in sorted(os.listdir(code))
                if os.path.exists(os.path.join(code, name, "__init__.py"))]
    digest.update(" ".join(packages).encode())
    return "\n".join([digest.hexdigest(), python, ROOT])


def read_stamp():
    try:
        with open(STAMP) as file:
            return file.read()
    except OSError:
        return None


def say(line):
    print("==> " + line, flush=True)


def has_ensurepip(python):
    return subprocess.run([python, "-c", "import ensurepip"],
                          stderr=subprocess.DEVNULL).returncode == 0


def make_venv(python):
    if has_ensurepip(python):
        subprocess.run([python, "-m", "venv", "--clear", VENV], check=True)
        return
    # Debian keeps pip's wheel in a package of its own; it can be unpacked without root.
    if not shutil.which("apt-get"):
        stop(f"{python} has no ensurepip: install its venv package (python3-venv)")
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", VENV], check=True)
    with tempfile.TemporaryDirectory() as folder:
        fetched = subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download",
                                  "python3-pip-whl"], cwd=folder).returncode
        debs = [name for name in os.listdir(folder) if name.endswith(".deb")]
        if fetched or not debs:
            stop(f"{python} has no ensurepip, and its wheel cannot be fetched. "
                 "Run: sudo apt-get install python3-venv")
        subprocess.run(["dpkg", "-x", debs[0], "."], cwd=folder, check=True)
        wheels = os.path.join(folder, "usr", "share", "python-wheels")
        pip = next(name for name in os.listdir(wheels) if name.startswith("pip-"))
        subprocess.run([os.path.join(VENV, "bin", "python"), os.path.join(wheels, pip, "pip"),
                        "install", "--quiet", "--no-index", os.path.join(wheels, pip)], check=True)


def pip(*arguments):
    """Run pip with one changing line of progress; all it says is kept in .venv/pip.log."""
    command = [os.path.join(VENV, "bin", "python"), "-m", "pip", "install", *arguments]
    with open(LOCK) as lock:
        total = sum(1 for line in lock if "==" in line)
    log_name, seen = os.path.join(VENV, "pip.log"), 0
    with open(log_name, "w") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, universal_newlines=True)
        for line in child.stdout:
            log.write(line)
            words = line.split()
            if words[:1] in (["Collecting"], ["Processing"], ["Requirement"], ["Ignoring"]):
                seen += 1
                show(f"[{min(seen, total):3d}/{total}] {os.path.basename(words[1]).rstrip(':')}")
            elif words[:1] == ["Installing"]:
                show(f"[{total}/{total}] copying into .venv, about a minute")
        code = child.wait()
    show("")
    if code:
        with open(log_name) as log:
            sys.stderr.write("".join(log.readlines()[-15:]))
        stop(f"pip could not install the environment (all it said: {log_name}); the same command "
             "again goes on from there")


def compile_packages():
    """Compile what pip did not; graded answers cannot write what Python compiles for them."""
    show("compiling the packages")
    python = os.path.join(VENV, "bin", "python")
    # Some packages have templates in place of programs, which do not compile.
    subprocess.run([python, "-m", "compileall", "-qq", "-x", UNUSED,
                    os.path.join(VENV, "lib")], stdout=subprocess.DEVNULL)
    show("")


last_shown = [0.0]


def show(text):
    """On a terminal one line that changes; elsewhere a line every ten seconds."""
    if sys.stdout.isatty():
        sys.stdout.write("\r\033[K" + text[:78])
        sys.stdout.flush()
    elif text and time.time() - last_shown[0] > 10:
        last_shown[0] = time.time()
        print(text, flush=True)


def ensure_venv():
    """Make .venv as the lock says; a stamp written last tells whether it is whole."""
    import fcntl  # not on Windows, which main() refuses first

    with open(os.path.join(ROOT, ".setup.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        have = read_stamp()
        python = find_python()
        want = wanted_stamp(python)
        if have == want:
            return
        # Another Python, or a checkout that was moved: its scripts name the old place.
        if have is None or have.split("\n")[1:] != want.split("\n")[1:]:
            say(f"Making the Python environment in .venv ({python})")
            make_venv(python)
        else:
            os.remove(STAMP)
        say("Installing the packages of requirements.lock")
        pip("--upgrade", PIP)
        pip("--no-compile", "-r", LOCK)
        compile_packages()
        pip("--no-build-isolation", "--no-deps", "-e", ROOT)
        with open(STAMP, "w") as file:
            file.write(want)


def main():
    if sys.platform != "linux":
        stop(f"Slurm needs Linux, and this is {sys.platform}. Use the container: see docker/")
    ensure_venv()
    command = os.path.join(VENV, "bin", sys.argv[1])
    if not os.path.exists(command):
        stop(f"the environment is whole, but has no program {sys.argv[1]}")
    os.execv(command, [command, *sys.argv[2:]])


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        stop(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
