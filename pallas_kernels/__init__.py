"""Accelerator operations of dspine-jax.

Each operation is a folder: a public function, an obvious float32 reference and one file per implementation.
"""
