"""A part of your Llama, for one stage of a pipeline."""

import torch
from mytrainer.llama import Layer, RMSNorm
from mytrainer.vocabulary import VocabParallelEmbedding, cross_entropy


class LlamaStage(torch.nn.Module):
    """Consecutive layers of a Llama, and the ends of the model that belong to the stage.

    Every parameter has the name that it has in the whole Llama: the first layer of the second of two stages of a model of
    eight layers is layers.4.

    Attributes:
        embedding: VocabParallelEmbedding, on the first stage only.
        layers: contains a Layer for each number.
        norm, head: RMSNorm and VocabParallelEmbedding, on the last stage only.
    """

    def __init__(self, shape, region, numbers, is_first, is_last):
        """Args:
            shape: as for Llama.
            region: the ranks that share the stage.
            numbers: indices of the stage's layers in the whole model.
            is_first: whether the stage begins with the embedding.
            is_last: whether the stage ends with the norm, the output layer, and the loss.
        """
        super().__init__()
        self.region, self.is_first, self.is_last = region, is_first, is_last
        if is_first:
            self.embedding = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
        self.layers = torch.nn.ModuleDict({str(number): Layer(shape, region) for number in numbers})
        if is_last:
            self.norm = RMSNorm(shape.hidden_size, region, shape.epsilon)
            self.head = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)

    def forward(self, x, data):
        """Return the hidden states [s, b, h] of the last layer, or on the last stage the mean loss (fp32, no dimensions).

        Args:
            x: hidden states of the previous stage, or None on the first stage.
            data: the micro-batch, with tokens, labels (int64), and loss_mask (0 or 1), all [s, b]. The loss is the mean over
                the tokens whose mask is 1.
        """
        if self.is_first:
            x = self.embedding(data.tokens)
        for layer in self.layers.values():
            x = layer(x)
        if not self.is_last:
            return x
        (logits,) = self.region.columns(self.norm(x), self.head)
        losses = cross_entropy(logits, data.labels, self.head.first, self.region)
        return (losses * data.loss_mask).sum() / data.loss_mask.sum().clamp(min=1)
