"""Fused-MoE kernel tables as data: names, rows, devices, and the choice of a row.

The format is SGLang's. Knows nothing of specs, packages or torch.
"""
