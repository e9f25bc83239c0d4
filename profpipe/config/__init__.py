"""pipeline.yaml to a validated Pipeline."""
