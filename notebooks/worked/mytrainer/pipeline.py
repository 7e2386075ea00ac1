"""Execute a pipeline schedule on one rank."""

import torch
import torch.distributed as dist
from mytrainer.program import parse
from mytrainer.stage import Stage


class BlockingLinks:
    """Sends and receives that return when the tensor has been sent or received.

    Attributes:
        group: the ranks of the pipeline; the rank of stage s is number s.
    """

    def __init__(self, group):
        self.group = group

    def send(self, tensor, stage, kind):
        """Send to a stage; kind: "F" for hidden states, and "B" for their gradients."""
        dist.send(tensor, group_dst=stage, group=self.group)

    def receive(self, tensor, stage, kind):
        """Receive from a stage, into a tensor; return None, or an object whose `wait()` waits for it."""
        dist.recv(tensor, group_src=stage, group=self.group)

    def finish(self):
        """Wait for all sends."""


class Pipeline:
    """One rank of a pipeline.

    Attributes:
        stages: a Stage for each chunk of the model on this rank.
        links: the sends and receives.
    """

    def __init__(self, modules, links, buffer, make_stage=Stage):
        """Args:
            modules: a module for each chunk.
            links: the sends and receives.
            buffer: returns an empty tensor for the hidden states of a micro-batch, given the micro-batch.
            make_stage: returns the Stage of a module.
        """
        self.stages, self.links, self.buffer = [make_stage(module) for module in modules], links, buffer

    def run(self, program, data, weights):
        """Run the passes of a step, and return the loss, weighted over the micro-batches (None except on the last stage).

        Args:
            program: this rank's actions, sends, and receives. `parse` splits an action: ("B", 3, 1) for B3.1.
            data: the micro-batches.
            weights: for each micro-batch, its weight in the loss, a float; they sum to 1. `Stage.backward` takes it as a
                tensor.
        """
        arrived, results, total = {}, {}, None
        for item in program:
            verb, *rest = item.split()
            if verb == "send":
                action, peer = rest[0], int(rest[2])
                self.links.send(results.pop(action), peer, action[0])
            elif verb == "recv":
                action, peer = rest[0], int(rest[2])
                tensor = self.buffer(data[parse(action)[1]])
                arrived[action] = tensor, self.links.receive(tensor, peer, action[0])
            else:
                loss = self.act(verb, arrived, results, data, weights)
                if loss is not None:
                    total = loss if total is None else total + loss
        self.links.finish()
        return total

    def act(self, action, arrived, results, data, weights):
        """Run an action, which takes its input from `arrived` and adds its output to `results`.

        Return the weighted loss after a forward pass at the end of the model.
        """
        kind, number, chunk = parse(action)
        stage = self.stages[chunk]
        tensor, work = arrived.pop(action, (None, None))
        if work is not None:
            work.wait()
        if kind == "W":
            stage.weight(number)
        elif kind == "B":
            gradient = stage.backward(number, tensor)
            if gradient is not None:
                results[action] = gradient
        else:
            y = stage.forward(number, tensor, data[number])
            if y.dim():
                results[action] = y
                return None
            arrived[f"B{action[1:]}"] = torch.full_like(y, weights[number]), None
            return weights[number] * y
        return None
