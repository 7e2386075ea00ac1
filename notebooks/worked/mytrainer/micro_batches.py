"""The weights of micro-batches."""


def loss_weights(tokens):
    """Return a list with the weight of each micro-batch in the loss of the mini-batch.

    Args:
        tokens: the number of tokens with a loss in each micro-batch; at least one has such tokens.
    """
    return [count / sum(tokens) for count in tokens]
