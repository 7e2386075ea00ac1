"""Watch jobs: `lab top` shows what runs now, `lab report` one job, and nvidia-smi the virtual GPUs.

Slurm reports what was asked for and the job's state (slurm.py, and components.py for a run of
several jobs); the ranks' own files, what each of them is doing (ranks.py); the log, what
went wrong and why (causes.py), and which configuration was read (asked.py). picture.py combines
them, liveness.py gives every rank one word, nodes.py reads the nodes' own files, verdicts.py judges
the job, and table.py, details.py, and page.py show the result. nvidia_smi/ is
the command for virtual GPUs.

logs.py, traces.py, kernels.py, bytes_sent.py, channels.py, and layouts.py read what finished jobs
leave behind: logs, profiles, and NCCL's lines; notebooks use them. The package may import labcore,
slurmbox, and virtualgpu, but neither the trainer nor the estimator. Begin with picture.py or
logs.py.
"""
