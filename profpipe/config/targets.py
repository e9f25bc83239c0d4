"""What the cases of a workload should reach (`targets:`)."""

from __future__ import annotations

from pydantic import Field, model_validator

from profpipe.config.strict_model import StrictModel


class Target(StrictModel):
    """What a quantity of a case should reach: from `good` on it is good, below `poor` it is poor, else fair."""

    good: float = Field(gt=0, allow_inf_nan=False, description="the least value that is good")
    poor: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="a value below it is poor; without it no value is"
    )

    @model_validator(mode="after")
    def _validate_order(self) -> Target:
        if self.poor is not None and self.poor > self.good:
            raise ValueError(f"calls values from {self.good:g} on good and values below {self.poor:g} poor")
        return self


class Share(Target):
    """A target in %."""

    @model_validator(mode="after")
    def _validate_share(self) -> Share:
        if self.good > 100:
            raise ValueError(f"is in %, and {self.good:g} is more than 100")
        return self


class Targets(StrictModel):
    """Targets of each case, which the report judges as good, fair or poor."""

    tflops: Target | None = Field(None, description="TFLOP/s of a call; of a sparse one, of the work that is done")
    gpu_busy: Share | None = Field(None, description="% of a call, or of a step, in which the GPU runs a kernel")
    memory_bandwidth: Share | None = Field(
        None,
        description="% of the machine's memory bandwidth that a call reaches: of the traffic that ncu measured, "
        "else of the bytes that it must move",
    )
    sm: Share | None = Field(None, description="% of the SMs' peak throughput, over the kernels that ncu measured")
    speedup: Target | None = Field(None, description="speed-up over the baseline")
