"""`progpo doctor`: what of an installation, its data and its machine would keep a training from running.

A check is a function `Case -> findings`; `findings.examine` runs each on its own, so that one that breaks says so and
the others still speak. Nothing here uses the network or starts a training.
"""
