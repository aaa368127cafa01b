"""The README's picture, made by the library: a trace drawn by hand, and predictions for an A100 beside published times.

    python tools/overview.py       writes book/images/overview.png
"""

from io import BytesIO

from chapters import ROOT
from PIL import Image

from tutorial_lib import cost, figures, hardware
from tutorial_lib.cited import cited
from tutorial_lib.predict import predict
from tutorial_lib.trace import by_hand

MARGIN = 24  # pixels

# label, work, claim whose published time stands beside it
ROWS = (
    ("x @ w, 4096 × 4096", cost.matmul(4096, 4096, 4096, "bfloat16"), "C14"),
    ("[8192, 768] → 3072", cost.matmul(8192, 768, 3072, "bfloat16"), "C36"),
    ("[8192, 3072] → 768", cost.matmul(8192, 3072, 768, "bfloat16"), "C36.down"),
    ("copy of 33.6 MB", cost.copy(4096**2, "bfloat16"), "C18"),
    ("gelu · mul, fused", cost.pointwise("gelu_mul", elements=8192 * 3072, dtype="bfloat16", reads=2), "C41"),
)


def picture() -> Image.Image:
    """Both figures side by side on white."""
    a100 = hardware.find("A100")
    rows = [(label, predict(work, a100), cited(key)) for label, work, key in ROWS]
    parts = [_image(figures.timeline(by_hand(), step=3)), _image(figures.predicted_and_measured(rows))]
    height = max(part.height for part in parts)
    whole = Image.new("RGB", (sum(part.width for part in parts) + 3 * MARGIN, height + 2 * MARGIN), "white")
    left = MARGIN
    for part in parts:
        whole.paste(part, (left, MARGIN + (height - part.height) // 2))
        left += part.width + MARGIN
    return whole


def _image(figure: figures.Figure) -> Image.Image:
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    return Image.open(buffer)


if __name__ == "__main__":
    picture().quantize(64).save(ROOT / "book" / "images" / "overview.png", optimize=True)
