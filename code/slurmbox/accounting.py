"""Run slurmdbd over a private MariaDB for `up --accounting`, so sacct has steps and memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from labcore.errors import LabError
from slurmbox.daemon import Daemon, listening
from slurmbox.install import ACCOUNTING_PACKAGES, SYSTEM_FOLDERS, Slurm, install_command
from slurmbox.layout import Layout

if TYPE_CHECKING:
    from slurmbox.addresses import ClusterNetwork

PROGRAMS = ("mariadbd", "mariadb", "mariadb-install-db", "slurmdbd")


def missing_programs(slurm: Slurm) -> list[str]:
    return [name for name in PROGRAMS if _find(slurm, name) is None]


def require_installed(slurm: Slurm) -> None:
    missing = missing_programs(slurm)
    if missing:
        raise LabError(f"--accounting needs {', '.join(missing)}, which this machine lacks; "
                       f"install them: {install_command(ACCOUNTING_PACKAGES)}")


def _find(slurm: Slurm, name: str) -> str | None:
    return slurm.find(name) or shutil.which(name, path=":".join(SYSTEM_FOLDERS))


def _database(layout: Layout) -> Path:
    return layout.short / "db"


def _socket(layout: Layout) -> Path:
    return layout.run / "mysql"


def write(layout: Layout, network: ClusterNetwork, slurm: Slurm) -> None:
    from slurmbox.config import put, user_name

    require_installed(slurm)
    (layout.state / "db").mkdir(exist_ok=True)
    user = user_name()
    database = _database(layout)
    put(layout.state / "db" / "my.cnf", f"""\
[mariadbd]
user={user}
datadir={database}/data
socket={_socket(layout)}
pid-file={layout.run}/mysql.pid
skip-networking
innodb_buffer_pool_size=32M
innodb_log_file_size=16M
innodb_lock_wait_timeout=900
key_buffer_size=1M
performance_schema=OFF
max_connections=20
log_error={layout.short}/log/mariadbd.log
""")
    put(layout.state / "etc" / "slurmdbd.conf", f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost={'localhost' if network.loopback else 'login'}
DbdPort={network.accounting_port}
SlurmUser={user}
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile={layout.short}/log/slurmdbd.log
PidFile={layout.run}/slurmdbd.pid
CommitDelay=1
""" + (f"PluginDir={layout.short}/plugins\n" if slurm.replaces_plugins else ""), 0o600)
    _create(layout, slurm, user)


def _create(layout: Layout, slurm: Slurm, user: str) -> None:
    """Create an empty database in a temporary folder, so an interrupted attempt is discarded."""
    data = layout.state / "db" / "data"
    if data.exists():
        return
    fresh = layout.state / "db" / "data.new"
    shutil.rmtree(fresh, ignore_errors=True)
    done = subprocess.run(
        [_find(slurm, "mariadb-install-db"), "--no-defaults",
         f"--datadir={_database(layout)}/data.new", f"--user={user}", "--skip-test-db",
         "--auth-root-authentication-method=socket", f"--auth-root-socket-user={user}"],
        capture_output=True, text=True)
    if done.returncode:
        raise LabError("the accounting database could not be created: "
                       + (done.stderr.strip() or done.stdout.strip())[-500:])
    fresh.rename(data)


def daemons(layout: Layout, network: ClusterNetwork, slurm: Slurm) -> list[Daemon]:
    client = _find(slurm, "mariadb")

    def sql(statement: str) -> subprocess.CompletedProcess:
        return subprocess.run([client, "--no-defaults", f"--socket={_socket(layout)}", "-e",
                               statement], capture_output=True, text=True, timeout=10)

    def grant() -> None:
        done = sql("create database if not exists slurm_acct_db;"
                   "create user if not exists 'slurm'@'localhost' identified by 'slurm';"
                   "grant all on slurm_acct_db.* to 'slurm'@'localhost'")
        if done.returncode:
            raise OSError(f"the accounting database refuses access: {done.stderr.strip()}")

    mariadb = Daemon("mariadbd", [_find(slurm, "mariadbd"),
                                  f"--defaults-file={_database(layout)}/my.cnf"],
                     is_up=lambda: _socket(layout).exists() and sql("select 1").returncode == 0,
                     prepare=grant)
    slurmdbd = Daemon("slurmdbd", [slurm.program("slurmdbd"), "-D"],
                      environment={"MYSQL_UNIX_PORT": str(_socket(layout))},
                      is_up=lambda: listening(network.accounting_port))
    return [mariadb, slurmdbd]
