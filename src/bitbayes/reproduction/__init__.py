"""Everything that re-runs the paper: networks, training, data sets, deep kernels, tables and figures.

`import bitbayes` does not import any of it. The public names are `bitbayes.data`, `bitbayes.networks`,
`bitbayes.paper`, `bitbayes.training` and `bitbayes.baselines.DeepKernel`.
"""
