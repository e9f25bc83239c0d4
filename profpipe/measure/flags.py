"""The validity flags of a measurement. The tables store the values; ``report/sections/times.py`` explains them."""

from __future__ import annotations

from enum import Enum


class Flag(str, Enum):
    """Why a measured number needs care. A member equals its stored word and is written as that word."""

    # Set by measure: conditions of the GPU.
    THROTTLED = "throttled"
    CLOCK_SPREAD = "clock_spread"
    OTHER_PROCESS = "other_process"
    # Set by measure: samples.
    NOISY = "noisy"
    TOO_FEW_SAMPLES = "too_few_samples"
    HOST_BOUND = "host_bound"
    SYNCHRONISES = "synchronises"
    NOT_CAPTURED = "not_captured"
    WARM_CACHE = "warm_cache"
    # Set by measure: results.
    UNCHECKED = "unchecked"
    INACCURATE = "inaccurate"
    # Set by analysis.
    ABOVE_PEAK = "above_peak"
    PROFILER_OVERHEAD = "profiler_overhead"
    WAITED = "waited"
    SHARED_HOST = "shared_host"
    KERNELS_VARY = "kernels_vary"
    SEVERAL_NODES = "several_nodes"
    UNLIKE_NODES = "unlike_nodes"

    # From Python 3.12 on the text of a mixed-in member would be `Flag.NOISY`.
    __str__ = str.__str__
