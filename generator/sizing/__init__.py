"""What `lingen plan` knows beside the planner: a model's stages, its weights on a card, the report.

Reads the IR and calls `lingen.planner`. Knows nothing of torch.
"""
