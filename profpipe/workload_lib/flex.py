"""torch's FlexAttention, compiled for one shape at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from profpipe.workload_lib import attention_config, compilation
from profpipe.workload_lib.attention_config import AttentionConfig, Forward


def flex(config: AttentionConfig) -> Forward:
    """Prepare a call with a block mask that is made once, as a model makes it for all layers and steps."""
    return with_mask(_block_mask(config), config, grouped=config.group_size > 1, kept=config.mode == "bwd")


def with_mask(mask: Any, case: Hashable, *, grouped: bool, kept: bool) -> Forward:
    """Return FlexAttention with a block mask or None, compiled once for each ``case``.

    ``grouped``: there are fewer key/value heads than query heads. ``kept``: the graph is kept after a backward pass.
    """
    compilation.keep_graphs(kept)
    call = compile_flex(case, grouped)
    return lambda q, k, v: call(q, k, v, mask)


@functools.cache
def compile_flex(case: Hashable, grouped: bool) -> Callable[..., Tensor]:
    """Compile at the first call, once per process and case, because a case is built more than once."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)

    return compilation.compiled(attend)


def _block_mask(config: AttentionConfig) -> Any:
    """Return None without a mask. The last query sees the last key for any number of queries."""
    if not config.has_mask:
        return None
    from torch.nn.attention.flex_attention import create_block_mask

    earlier = config.seqlen - config.queries

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + earlier >= key

    return create_block_mask(visible, None, None, config.queries, config.seqlen, device=attention_config.device())
