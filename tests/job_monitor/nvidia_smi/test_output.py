"""The output of `nvidia-smi`: NVIDIA's formats, and a note that the GPUs are virtual."""

import json
import re

import pytest

from job_monitor.nvidia_smi import cards
from virtualgpu.core.cards import CARDS
from virtualgpu.smi import query, table

STAMP = r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}"


def test_the_table(cluster, capsys):
    pid = cluster.rank(job=5, gpu=0, slot=1)
    assert cluster.main("--node", "slurmnode1") == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\w{3} \w{3} \d\d [\d:]{8} \d{4}   slurmnode1 \(virtual GPUs: modeled, "
                        r"no hardware\)", lines[0])
    assert {len(line) for line in lines[1:]} == {89}
    assert "| NVIDIA-SMI virtual " in lines[2]
    (idle, busy) = [line for line in lines if "MiB / 16160MiB" in line]
    assert idle == ("| N/A   N/A   N/A              N/A /  N/A |      0MiB / 16160MiB |"
                    "      0%      Default |")
    assert "   1500MiB / 16160MiB |     42%  " in busy
    assert "|   1  Tesla V100-SXM2-16GB           N/A | 00000000:1C:00.0 N/A |" in "\n".join(lines)
    assert lines[-2] == (f"|    1   N/A  N/A {pid:9d}      C   python{'':37}1500MiB |")


def test_the_table_of_an_idle_node_and_of_one_without_gpus(make, capsys):
    cluster = make("v100:1,none")
    assert cluster.main() == 0
    captured = capsys.readouterr()
    assert "No running processes found" in captured.out
    assert captured.out.splitlines()[-1] == "slurmnode2: no GPUs"
    assert captured.err == ("nvidia-smi: virtual GPUs: modeled, no hardware; nodes slurmnode1, "
                            "slurmnode2 (--node NAME selects one)\n")


@pytest.mark.parametrize("name", CARDS)
def test_the_longest_names_fit(make, capsys, name):
    cluster = make(f"{name}:8", 1)
    cluster.rank(job=5, gpu=7, slot=7, card=name, memory_used=CARDS[name].memory, utilization=1,
                 memory_total=CARDS[name].memory, pid=4_194_304)
    assert cluster.main() == 0
    assert {len(line) for line in capsys.readouterr().out.splitlines()[1:]} == {89}


def test_the_list_has_names_that_stay(cluster, capsys):
    assert cluster.main("-L") == 0
    first = capsys.readouterr().out
    cluster.rank(job=5, gpu=0, slot=0)
    assert cluster.main("--list-gpus") == 0
    assert capsys.readouterr().out == first
    lines = first.splitlines()
    assert [lines[0], lines[3]] == ["slurmnode1:", "slurmnode2:"]
    uuids = re.findall(r"^GPU [01]: Tesla V100-SXM2-16GB \(virtual\) \(UUID: "
                       r"(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\)$", first, re.M)
    assert len({*uuids}) == 4
    assert bytes.fromhex(uuids[0][4:22].replace("-", "")).startswith(b"virtual")


def matrix(capsys, cluster):
    """The rows of `nvidia-smi topo -m` as lists of cells, and the lines below them."""
    assert cluster.main("topo", "-m") == 0
    rows, _, below = capsys.readouterr().out.partition("\n\n")
    return [row.split("\t") for row in rows.splitlines()], below.splitlines()


@pytest.mark.parametrize(("name", "cells"), [
    ("a100", "NV12 X NV12 NV12 NV12 NV12 NV12 NV12 12-15 3"),
    ("h100", "NV18 X NV18 NV18 NV18 NV18 NV18 NV18 0-15 0"),
    ("v100-pcie", "PIX X NODE NODE SYS SYS SYS SYS 0-15 0"),
    ("h100-pcie", "PIX X NODE NODE SYS SYS SYS SYS 0-15 0"),
    ("t4", "NODE X NODE NODE SYS SYS SYS SYS 0-15 0"),
    ("rtx3090", "PHB X PHB PHB PHB PHB PHB PHB 0-31 0")])
def test_the_matrix_of_links(make, capsys, name, cells):
    rows, below = matrix(capsys, make(f"{name}:8", 1, link="25gbit"))
    assert rows[0] == ["", *(f"GPU{gpu}" for gpu in range(8)), "CPU Affinity", "NUMA Affinity",
                       "GPU NUMA ID"]
    assert [cell.strip() for cell in rows[2]] == ["GPU1", *cells.split(), "", "N/A"]
    assert any(line.startswith("  NV#  = ") for line in below) and "virtual" in below[-1]


@pytest.mark.parametrize(("cpus", "affinities"), [
    (64, ["0-31", "32-63"]), (9, ["0-3", "4-8"]), (2, ["0", "1"]), (1, ["0", "0"])])
def test_the_cpus_are_the_cluster_s(make, capsys, cpus, affinities):
    rows, _ = matrix(capsys, make("h100-pcie:8", 1, link="25gbit", cpus=cpus))
    column = rows[0].index("CPU Affinity")
    assert [rows[gpu][column] for gpu in (1, 8)] == affinities


def test_a_node_of_v100s_is_a_dgx_1(make, capsys):
    """The layout is a real node's, with an InfiniBand adapter for each pair of GPUs."""
    rows, below = matrix(capsys, make("v100:8", 1))
    cells = [[cell.strip() for cell in row] for row in rows]
    assert [" ".join(row[1:9]) for row in cells[1:9]] == [
        "X NV1 NV1 NV2 NV2 SYS SYS SYS", "NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 X NV2 SYS SYS NV1 SYS", "NV2 NV1 NV2 X SYS SYS SYS NV1",
        "NV2 SYS SYS SYS X NV1 NV1 NV2", "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2", "SYS SYS SYS NV1 NV2 NV1 NV2 X"]
    assert cells[0][9:13] == ["NIC0", "NIC1", "NIC2", "NIC3"] and cells[0][13] == "CPU Affinity"
    assert [row[9:13] for row in (cells[1], cells[8])] == [
        ["PIX", "PHB", "SYS", "SYS"], ["SYS", "SYS", "PHB", "PIX"]]
    assert cells[9] == ["NIC0", "PIX", "PIX", "PHB", "PHB", *4 * ["SYS"], "X", "PHB", "SYS", "SYS"]
    assert "  NIC3: mlx5_3" in below


def test_a_job_sees_how_its_own_gpus_are_connected(make, capsys, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "slurmnode1")
    monkeypatch.setenv("SLURM_JOB_GPUS", "0,3")
    rows, _ = matrix(capsys, make("v100:8", 1))
    assert [row[:3] for row in rows[1:3]] == [["GPU0", " X ", "NV2"], ["GPU1", "NV2", " X "]]


def test_a_query_in_nvidia_s_format(cluster, capsys):
    cluster.rank(job=5, gpu=0, slot=0)
    asked = ("timestamp,name,index,temperature.gpu,utilization.gpu,utilization.memory,memory.used,"
             "memory.free,memory.total,power.draw,driver_version,clocks.sm")
    assert cluster.main(f"--query-gpu={asked}", "--format=csv", "--node=slurmnode1") == 0
    captured = capsys.readouterr()
    header, busy, idle = captured.out.splitlines()
    assert header == (
        "timestamp, name, index, temperature.gpu, utilization.gpu [%], utilization.memory [%], "
        "memory.used [MiB], memory.free [MiB], memory.total [MiB], power.draw [W], driver_version, "
        "clocks.current.sm [MHz]")
    assert re.fullmatch(rf"{STAMP}, Tesla V100-SXM2-16GB \(virtual\), 0, \[N/A\], 42 %, \[N/A\], "
                        r"1500 MiB, 14660 MiB, 16160 MiB, \[N/A\], virtual, \[N/A\]", busy)
    assert ", 0 %, [N/A], 0 MiB, 16160 MiB, 16160 MiB, " in idle
    assert captured.err == "nvidia-smi: virtual GPUs: modeled, no hardware\n"


def test_a_query_without_header_and_units(cluster, capsys):
    assert cluster.main("--format=csv,nounits", "--query-gpu=memory.used,name", "-i", "0") == 0
    assert capsys.readouterr().out == "memory.used [MiB], name\n" + 2 * (
        "0, Tesla V100-SXM2-16GB (virtual)\n")  # the first card of each node
    assert cluster.csv(capsys, "gpu_bus_id, utilization.memory", "-i=1", "--node=slurmnode1") == [
        ["00000000:1C:00.0", "[N/A]"]]


def test_processes(cluster, capsys):
    words = "--query-compute-apps=pid,used_memory,process_name,gpu_bus_id", "--format=csv"
    assert cluster.main(*words) == 0
    header = "pid, used_gpu_memory [MiB], process_name, gpu_bus_id\n"
    assert capsys.readouterr().out == header
    pid = cluster.rank(job=5, gpu=0, slot=1, node="slurmnode2")
    assert cluster.main(*words) == 0
    assert capsys.readouterr().out == f"{header}{pid}, 1500 MiB, python, 00000000:1C:00.0\n"


@pytest.mark.parametrize("kind", ["0", "1", "bus", "uuid"])
def test_one_card(cluster, capsys, kind):
    record = json.loads((cluster.state / "running.json").read_text())
    gpu = cards.assign(cards.declared_gpus(record), [])["slurmnode2"][kind != "0"]
    name = {"bus": gpu.bus_id, "uuid": gpu.uuid.upper()}.get(kind, kind)
    assert cluster.csv(capsys, "uuid", "--node", "slurmnode2", "--id", name) == [[gpu.uuid]]


def test_a_file_instead_of_the_terminal(cluster, capsys, tmp_path):
    assert cluster.main("-L", "-f", str(tmp_path / "list.txt")) == 0
    assert not capsys.readouterr().out
    assert (tmp_path / "list.txt").read_text().count("GPU 0: ") == 2


@pytest.mark.parametrize(("flag", "fields"), [
    ("--help-query-gpu", query.GPU_FIELDS), ("--help-query-compute-apps", query.APP_FIELDS)])
def test_the_fields_are_listed(cluster, capsys, flag, fields):
    assert cluster.main(flag) == 0
    shown = capsys.readouterr().out
    assert all(f'"{field.name}"' in shown for field in fields)


def test_every_field_can_be_asked_for(cluster, capsys):
    cluster.rank(job=5, gpu=0, slot=0)
    names = ",".join([*(field.name for field in query.GPU_FIELDS), *query.ALIASES])
    rows = cluster.csv(capsys, names)
    assert {len(row) for row in rows} == {names.count(",") + 1} and all(all(row) for row in rows)


# What exporters for Prometheus, Telegraf and others ask for.
EXPORTERS = ("count,power.draw.instant,power.draw.average,clocks_throttle_reasons.active,"
             "clocks_event_reasons.hw_slowdown,ecc.mode.current,temperature.gpu.tlimit,"
             "ecc.errors.corrected.aggregate.total,gpu_serial,enforced.power.limit,"
             "clocks.max.sm,clocks.video,utilization.encoder,retired_pages.pending,compute_cap,"
             "pci.bus,memory.reserved,encoder.stats.sessionCount,mig.mode.pending")


def test_fields_of_exporters_answer_or_are_not_available(cluster, capsys):
    answers = dict(zip(EXPORTERS.split(","),
                       cluster.csv(capsys, EXPORTERS, "--node=slurmnode1", "-i", "1")[0],
                       strict=True))
    known = {"count": "2", "compute_cap": "7.0", "pci.bus": "0x1C"}
    assert answers == dict.fromkeys(answers, query.NOT_MODELED) | known
    assert cluster.main("--query-gpu=power.draw.instant,clocks_throttle_reasons.active",
                        "--format=csv") == 0
    assert capsys.readouterr().out.startswith(
        "power.draw.instant [W], clocks_event_reasons.active\n[N/A], [N/A]\n")
    assert cluster.main("--query-gpu=power.drawn", "--format=csv") == 2
    assert "nearest: power.draw" in capsys.readouterr().err


def test_help(cluster, capsys):
    with pytest.raises(SystemExit) as end:
        cluster.main("-h")
    shown = capsys.readouterr().out
    assert not end.value.code and "--query-compute-apps" in shown and "virtual" in shown


def test_the_legend_explains_every_link():
    words = ("SYS", "NODE", "PHB", "PXB", "PIX", "NV#", "X")
    assert all(f"  {word} " in table.LEGEND for word in words)
