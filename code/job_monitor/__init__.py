"""Watch jobs: `lab top` shows what runs now, `lab report` one job, and nvidia-smi the virtual GPUs.

slurm.py asks Slurm for a job's request and state, and components.py combines a run of several jobs.
ranks.py reads the status files of the ranks, nodes.py those of the nodes, causes.py the errors in
the log, and requested.py the configuration in the log. snapshot.py combines them, liveness.py
judges each rank, verdicts.py judges the job, and table.py, details.py, and page.py show the
result. cli.py has the commands, report.py writes the page, figures.py lays out its figures, and
timeline.py reads the trace of a step. nvidia_smi/ is the command for virtual GPUs.

logs.py (with metrics.py), traces.py, kernels.py, bytes_sent.py, channels.py, and layouts.py read
what finished jobs leave behind: logs, profiles, and NCCL's lines; notebooks use them. The package
may import labcore, slurmbox, and virtualgpu, but neither the trainer nor the estimator. Begin with
snapshot.py or logs.py.
"""
