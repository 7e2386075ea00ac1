"""The process groups of tensor, data, and pipeline parallelism."""

import torch.distributed as dist


class Grid:
    """This rank's place and process groups. Rank = i_tensor + tensor * (i_data + data * i_stage), as in Megatron-LM.

    Attributes:
        stage: this rank's stage in its pipeline, from 0.
        stages: the number of stages in a pipeline.
        replica: index of this rank's copy of the model, from 0.
        tensor: process group of the ranks that share this rank's layers.
        data: process group of the ranks that have the same parameters in other replicas.
        model: process group of all ranks that share this copy of the model.
        links: {"F": process group of the ranks of this rank's pipeline, in the order of their stages, "B": another one of
            the same ranks}.
        ends: process group of the first and the last stage of this rank's pipeline; None on all other stages, and if
            there is only one stage.
    """

    def __init__(self, tensor, pipeline):
        """Args:
            tensor: the number of tensor-parallel ranks, t.
            pipeline: the number of stages, p.

        Raises ValueError if t * p does not divide the number of ranks.
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        if world % (tensor * pipeline):
            raise ValueError(f"{world} ranks are not divisible by {tensor} x {pipeline}")
        data = world // (tensor * pipeline)

        def number(i, j, k):
            return i + tensor * (j + data * k)

        def own(groups):
            """Create all groups; return that of this rank, or None."""
            found = None
            for ranks in groups:
                group = dist.new_group(ranks)
                if rank in ranks:
                    found = group
            return found

        t, d, p = range(tensor), range(data), range(pipeline)
        pipelines = [[number(i, j, k) for k in p] for j in d for i in t]
        self.stage, self.stages, self.replica = rank // (tensor * data), pipeline, rank // tensor % data
        self.tensor = own([[number(i, j, k) for i in t] for k in p for j in d])
        self.data = own([[number(i, j, k) for j in d] for k in p for i in t])
        self.model = own([[number(i, j, k) for k in p for i in t] for j in d])
        self.links = {kind: own(pipelines) for kind in "FB"}
        self.ends = own([[ranks[0], ranks[-1]] for ranks in pipelines if len(ranks) > 1])
