"""Plan a training run on a cluster of unlike GPUs.

stages.py has the costs of a pipeline's stages for every number of layers, timing.py simulates a
step with them, and partition.py splits the layers, exactly or as AMP and FASOP do. Clusters are
described in two ways. `lab plan` has nodes and the profiles of a model on each GPU model
(profiles.py): placement.py puts stages on the nodes, and search.py is the branch and bound over
everything else, for the plans of plans.py; variants.py tries other schedules, and unequal.py other
numbers of micro-batches per replica. Lab 14 and the contest `plans` have cases, a simpler
description without nodes: case_model.py turns them into costs of stages, and case_planners.py
plans them.

The layout estimator measures the profiles and has the command `lab plan`. This package knows
neither it nor the trainer, except for the trainer's formulas. Begin with stages.py, then
partition.py and search.py.
"""
