"""The allocation that Slurm would give a job: its nodes, tasks, and CPUs, and its environment."""

from __future__ import annotations

from labkit.check import options

NODE = "slurmnode"  # the job's nodes are slurmnode1, slurmnode2, ...
JOB = "1"  # its ID
CPUS = 32  # of a node, as in slurmbox.profile, which may be masked here


def allocated(directives: dict[str, str]) -> tuple[int, int]:
    """Return the numbers of nodes and tasks of a job with these directives. Raises BadOption."""
    per_node = directives.get("ntasks-per-node")
    tasks = options.count(directives.get("ntasks"), 1)
    fitting = -(-tasks // options.count(per_node, tasks)) if "ntasks" in directives else 1
    nodes = options.count(directives.get("nodes"), fitting)
    if per_node and "ntasks" not in directives:
        tasks = nodes * options.count(per_node, 1)
    return nodes, max(tasks, nodes)


def cpus_of_node(directives: dict[str, str]) -> int:
    """Return the CPUs per node that these directives request. Raises BadOption."""
    nodes, tasks = allocated(directives)
    most = -(-tasks // nodes) * options.cpus(directives.get("cpus-per-task", "1"))
    if "cpus-per-gpu" in directives:
        gpus, _ = options.gpus_of_nodes(directives, nodes)
        most = max(most, gpus * options.cpus(directives["cpus-per-gpu"], "cpus-per-gpu"))
    most = max(most, options.cpus(directives.get("mincpus", "1"), "mincpus"))
    return max(most, CPUS) if "exclusive" in directives else most


def environment(directives: dict[str, str], notes: list[str]) -> dict[str, str]:
    """Return the environment variables that Slurm would set for the job."""
    per_node = directives.get("ntasks-per-node")
    try:
        nodes, tasks = allocated(directives)
        cpus = cpus_of_node(directives)
    except options.BadOption as error:
        notes.append(f"#SBATCH: {error}")
        nodes, tasks, per_node, cpus = 1, 1, None, 1
    share, rest = divmod(tasks, nodes)
    spread = f"{share + 1}(x{rest}),{share}(x{nodes - rest})" if rest else f"{share}(x{nodes})"
    hosts = f"{NODE}1" if nodes == 1 else f"{NODE}[1-{nodes}]"
    variables = {
        "SLURM_JOB_ID": JOB, "SLURM_JOBID": JOB,
        "SLURM_JOB_NAME": directives.get("job-name", "job"),
        "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts, "SLURM_TASKS_PER_NODE": spread, "SLURM_NODEID": "0",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "slurmnode1",
        "SLURM_JOB_PARTITION": directives.get("partition", "slurmpar"), "USER": "student",
        "TERM": "xterm", "SLURM_JOB_USER": "student", "SLURM_CLUSTER_NAME": "lab",
        "SLURM_SUBMIT_HOST": "slurmnode1", "SLURM_JOB_ACCOUNT": "student", "SLURM_GTIDS": "0",
        "SLURM_CPUS_ON_NODE": str(cpus), "SLURM_JOB_CPUS_PER_NODE": f"{cpus}(x{nodes})"}
    if "ntasks" in directives or per_node:
        variables |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    for option, name in (("ntasks-per-node", "SLURM_NTASKS_PER_NODE"),
                         ("cpus-per-task", "SLURM_CPUS_PER_TASK"),
                         ("gpus-per-node", "SLURM_GPUS_PER_NODE"), ("gpus", "SLURM_GPUS")):
        if option in directives:
            variables[name] = directives[option]
    gpus, _ = options.gpus_of_nodes(directives, nodes)
    if gpus:
        variables["SLURM_GPUS_ON_NODE"] = str(gpus)
    return variables
