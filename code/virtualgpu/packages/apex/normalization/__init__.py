"""Normalizations of Apex."""

from .fused_layer_norm import FusedLayerNormAffineFunction, fused_layer_norm_affine

__all__ = ["FusedLayerNormAffineFunction", "fused_layer_norm_affine"]
