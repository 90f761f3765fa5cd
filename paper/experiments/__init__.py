"""The tables and figures, each in one module with `measure` and `show`.

`ood` and `exposed` are what several tables share.
"""
