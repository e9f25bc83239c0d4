"""The allocator of torch grows its segments instead of adding new ones."""

ALTERS_NUMERICS = False
CODE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
VARIABLES = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
