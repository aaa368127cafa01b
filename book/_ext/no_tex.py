"""Outputs without their TeX version, so that no page asks another host for MathJax.

Some outputs (IPython's `Code`, for one) offer HTML and TeX. A page shows the HTML, but Sphinx would count the
hidden TeX as a formula and load MathJax. The book itself writes its arithmetic as plain text.
"""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform


class DropTex(SphinxTransform):
    """Remove the TeX of outputs that offer something else, before Sphinx counts formulas (priority 850)."""

    default_priority = 840

    def apply(self, **kwargs) -> None:
        for formula in list(self.document.findall(nodes.math_block)):
            bundle = formula.parent.parent
            is_output = isinstance(bundle, nodes.container) and bundle.get("nb_element") == "mime_bundle"
            if is_output and len(bundle) > 1:
                bundle.remove(formula.parent)


def setup(app: Sphinx) -> dict:
    app.add_transform(DropTex)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
