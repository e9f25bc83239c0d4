"""Code that the workloads share: attention implementations, inputs, references, models."""
