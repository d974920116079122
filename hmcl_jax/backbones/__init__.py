"""Frozen hyperbolic backbones: published checkpoints, their towers in Flax, text and pictures.

Import what you need from its module; some need ``pip install 'hmcl_jax[backbones]'``.
"""
