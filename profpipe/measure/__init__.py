"""Code that runs inside the process of the workload. It imports the standard library, torch and NVML only."""
