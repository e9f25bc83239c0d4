"""What all pictures share: colours, fonts, the head, how they are saved.

Matplotlib is imported when lines are drawn: it takes longer to load than the rest of a report.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from profpipe.results import atomic

if TYPE_CHECKING:
    from PIL import Image

#: Okabe and Ito's colours without yellow, which is lost on white, and two of Tol's that stay apart from them for the
#: colour-blind. More lines than colours get another stroke and marker.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#882255", "#7A8B2F")
INK = "#1A1A1A"
STROKES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
GREY, FAINT = "#5F6368", "#E3E5E8"

RC = {
    # A name such as `$A_$B` is text, no formula.
    "text.parse_math": False,
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": "#9AA0A6",
    "axes.labelcolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}

#: Pixels in an inch.
DPI = 150
#: More than the colours of a picture and the shades of their edges.
PALETTE_COLOURS = 128


def rasterise(figure: Any) -> Image.Image:
    """Return the picture of a figure."""
    import matplotlib
    from PIL import Image

    # Labels of ticks are made while the figure is drawn.
    with warnings.catch_warnings(), matplotlib.rc_context({"text.parse_math": False}):
        # A box stands for it, and the page has the name in full.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.canvas.draw()
    return Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB")


def save(picture: Image.Image, path: Path) -> None:
    """Write the picture as a PNG with a palette: a quarter of the size of one with 24 bits a pixel."""
    from PIL import Image

    atomic.make_folder(path.parent)
    # Median cut keeps the white background white, which the faster octree does not.
    palette = picture.quantize(PALETTE_COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    atomic.write(path, lambda stream: palette.save(stream, format="png", dpi=(DPI, DPI)))


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions as near to ``wanted`` as they can be at least ``gap`` apart, in the same order, inside the bounds.

    Where there is no room for ``gap`` they share what there is.
    """
    if not wanted:
        return []
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # (centre, members): labels that touch move together
    for i in order:
        centre, size = wanted[i], 1
        while blocks and blocks[-1][0] + gap * (blocks[-1][1] + size) / 2 > centre:
            other, members = blocks.pop()
            centre, size = (other * members + centre * size) / (members + size), members + size
        blocks.append((centre, size))
    placed = [centre + gap * (k - (size - 1) / 2) for centre, size in blocks for k in range(size)]
    for k, position in enumerate(placed):
        placed[k] = max(position, low + k * gap, placed[k - 1] + gap if k else low)
    for k in range(len(placed) - 1, -1, -1):
        placed[k] = min(placed[k], high - (len(placed) - 1 - k) * gap)
    return [position for _, position in sorted(zip(order, placed, strict=True))]
