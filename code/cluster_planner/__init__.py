"""Plan a training run on a cluster of unlike GPUs.

profiles.py says what the embedding, one layer, and the head of a model cost on each GPU model.
placement.py puts the stages of a pipeline on nodes, stages.py computes the time and memory of each
stage for every number of layers, timing.py simulates the step, and partition.py splits the layers,
exactly or as published planners do. search.py is the branch and bound over everything else, for the
plans of plans.py; variants.py tries other schedules, and unequal.py other numbers of micro-batches
per replica.

The layout estimator measures the profiles and has the command `lab plan`. This package knows
neither it nor the trainer, except for the trainer's formulas. Begin with stages.py, then
partition.py and search.py.
"""
