"""Labs, scripts, vocabularies and token files, made when the image is: Binder starts are short."""

from corpus_tools import cli as data
from labcore import shipping, workspace

shipping.make_workspace(workspace.home())
data.ensure(workspace.home(), print)
