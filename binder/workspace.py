"""Labs, scripts, vocabularies and token files, made when the image is: Binder starts are short."""

from lab import data, workspace

workspace.make(workspace.home())
data.ensure(workspace.home(), print)
