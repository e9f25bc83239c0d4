"""torch's FlexAttention, compiled for one shape at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from profpipe import load

if TYPE_CHECKING:
    import _compile
    import _setting
    from _setting import Forward, Setting
else:
    _compile = load.module(Path(__file__).with_name("_compile.py"))
    _setting = load.module(Path(__file__).with_name("_setting.py"))


def flex(setting: Setting) -> Forward:
    """The block mask is made beforehand, as a model makes it once for all layers and steps."""
    return under(_block_mask(setting), setting, grouped=setting.group > 1, kept=setting.mode == "bwd")


def under(mask: Any, case: Hashable, *, grouped: bool, kept: bool) -> Forward:
    """FlexAttention under a block mask or None, compiled once for each ``case``.

    ``grouped``: there are fewer key/value heads than query heads. ``kept``: the graph outlives its backward pass.
    """
    _compile.keep_graphs(kept)
    call = _compiled(case, grouped)
    return lambda q, k, v: call(q, k, v, mask)


@functools.cache
def _compiled(case: Hashable, grouped: bool) -> Callable[..., Tensor]:
    """Compiled at its first call, once a process for each case, for a case is built more than once."""
    from torch.nn.attention.flex_attention import flex_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
        return flex_attention(q, k, v, block_mask=mask, enable_gqa=grouped)

    return _compile.compiled(attend)


def _block_mask(setting: Setting) -> Any:
    """None without a mask. The last query sees the last key, however many queries there are."""
    if not setting.masked:
        return None
    from torch.nn.attention.flex_attention import create_block_mask

    earlier = setting.seqlen - setting.queries

    def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query + earlier >= key

    return create_block_mask(visible, None, None, setting.queries, setting.seqlen, device=_setting.device())
