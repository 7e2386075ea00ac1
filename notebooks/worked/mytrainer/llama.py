"""Llama: the modern transformer (Touvron et al., 2023), made of your own layers."""

import torch
from mytrainer.heads import Attention
from mytrainer.randomness import Dropout
from mytrainer.tensor_parallel import MLP, parameter
from mytrainer.vocabulary import VocabParallelEmbedding, cross_entropy


class RMSNorm(torch.nn.Module):
    """x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich, 2019).

    Attributes:
        weight: a parameter [h], of which every rank has a copy.
    """

    def __init__(self, hidden, region, epsilon=1e-5):
        super().__init__()
        self.epsilon, self.weight = epsilon, parameter((hidden,), region)
        self.weight.is_partial = region.splits_sequence

    def forward(self, x):
        """Normalize x [s, b, h] over its features, in fp32."""
        wide = x.float()
        scale = (wide.square().mean(-1, keepdim=True) + self.epsilon).rsqrt()
        return (wide * scale).to(x.dtype) * self.weight


class Layer(torch.nn.Module):
    """Attention and an MLP, each in a residual branch that begins with a norm and ends with dropout.

    Attributes:
        attention_norm, mlp_norm: RMSNorm.
        attention: Attention.
        mlp: MLP.
        attention_dropout, mlp_dropout: Dropout.
    """

    def __init__(self, shape, region):
        """Args:
            shape: as for Llama.
            region: the ranks that share the layer.
        """
        super().__init__()
        hidden = shape.hidden_size
        self.attention_norm = RMSNorm(hidden, region, shape.epsilon)
        self.attention = Attention(hidden, shape.heads, shape.kv_heads, shape.head_dim, region, shape.rotary_base,
                                   shape.flash)
        self.mlp_norm = RMSNorm(hidden, region, shape.epsilon)
        self.mlp = MLP(hidden, shape.inner_size, region)
        self.attention_dropout, self.mlp_dropout = Dropout(shape.dropout, region), Dropout(shape.dropout, region)

    def forward(self, x):
        """Map x [s, b, h] to the same shape."""
        x = x + self.attention_dropout(self.attention(self.attention_norm(x)))
        return x + self.mlp_dropout(self.mlp(self.mlp_norm(x)))


class Llama(torch.nn.Module):
    """An embedding, layers, a norm, and an output layer with a weight of its own.

    Attributes:
        embedding, head: VocabParallelEmbedding.
        layers: torch.nn.ModuleList of Layer.
        norm: RMSNorm.
    """

    def __init__(self, shape, region):
        """Args:
            shape: has vocab_size, hidden_size, layers, heads, kv_heads, head_dim, inner_size, rotary_base, epsilon,
                flash, and dropout, the probability.
            region: the ranks that share the model.
        """
        super().__init__()
        self.region = region
        self.embedding = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)
        self.layers = torch.nn.ModuleList(Layer(shape, region) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, region, shape.epsilon)
        self.head = VocabParallelEmbedding(shape.vocab_size, shape.hidden_size, region)

    def forward(self, tokens, labels):
        """Return the loss of each token, fp32 [s, b], given tokens and labels, int64 [s, b]."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        (logits,) = self.region.columns(self.norm(x), self.head)
        return cross_entropy(logits, labels, self.head.first, self.region)
