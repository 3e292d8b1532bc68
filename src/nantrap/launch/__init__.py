"""`nantrap run`: guards a script without changes to it.

patches     attributes replaced for a while
attach      all of the wrappers together: optimizers, gradients, scalers, schedules, loaders, saving, resuming
loops       one guard for each optimizer; roots finds its model
script      a script or module, run as Python would
settings    command line, environment, pyproject.toml
runner      attach, run, print the summary; notebook the same for `%load_ext nantrap`
"""
