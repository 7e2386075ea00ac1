"""The trainer's data set and launcher, for runs on virtual cards."""

from ..minimegatron.conftest import (  # noqa: F401  fixtures
    dataset,
    make_context,
    pretrain,
    train,
    virtual_device,
)
