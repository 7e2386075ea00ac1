"""Estimate the time, memory, and dollars of a layout without starting a rank.

`pretrain_gpt.py --estimate` (main.py) and `lab estimate` (cli.py) print it; costs.py and layers.py
show it in notebooks. One rank represents all ranks of its stage (representative.py) in a modeled
cluster (cluster.py). The trainer runs every distinct stage once on a virtual GPU (measurement.py),
the interpreter of schedules combines them into the time and memory of a step (step_time.py,
memory.py), and planner.py turns that into days and dollars (prices.py). In a cluster of several
kinds of nodes, each replica is simulated with the stages on its own GPUs (mixed.py, replicas.py).
memory_record.py records a step's memory over time.

`lab plan` (plan_cli.py) searches the plans of such a cluster with cluster_planner, whose profiles
layer_profiles.py measures on virtual GPUs; plan_report.py prints the plans.

It may import cluster_planner, the trainer, pipeline_schedules, virtualgpu, and labcore; the trainer
never imports it. Begin with planner.py, then estimate.py. Importing planner.py imports torch, so
programs that only parse flags do not.
"""
