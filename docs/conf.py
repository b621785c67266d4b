"""Settings of the documentation: `make docs` builds it, with warnings as errors."""

from __future__ import annotations

import re
from importlib.metadata import distribution
from typing import Any

import pyro_deeponet

project = "pyro-deeponet"
author = "The pyro-deeponet developers"
release = version = pyro_deeponet.__version__
copyright = author

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb"]
exclude_patterns = ["_build", "results/**", "ablation/**", "compare/**", "benchmarks/**"]

# Pages are read without a network, formulas included: MathJax comes in a package, of which one
# script is copied, with the shapes of all letters in it.
_offline = distribution("sphinx-mathjax-offline")
_mathjax = next(file for file in _offline.files or () if file.name == "tex-svg.js")
mathjax_path = _mathjax.name
html_theme = "furo"
html_title = f"pyro-deeponet {version}"
html_static_path = ["_static", str(_offline.locate_file(_mathjax))]
html_css_files = ["site.css"]
html_show_sphinx = False

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence"]
myst_heading_anchors = 3

# Tutorials run when the pages are built; one that fails fails the build.
nb_execution_mode = "force"
nb_execution_timeout = 300
nb_execution_in_temp = True  # the files that a tutorial writes
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True

default_role = "code"  # a word in single backticks is code, in docstrings as in Markdown
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
# Types are said by the names that users write, not by what they stand for.
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "Activation", "Features", "Guide", "Prior", "Schedule")
}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88


def _alias_names(*arguments: Any) -> tuple[str | None, str | None]:
    """Type aliases by their names, which Sphinx wraps inside of a union."""
    *_, signature, returned = arguments
    wrapped = re.compile(r"TypeAliasForwardRef\('(\w+)'\)")
    named = [text and wrapped.sub(r"\1", text) for text in (signature, returned)]
    return named[0], named[1]


def setup(app: Any) -> None:
    """What Sphinx calls with itself."""
    app.connect("autodoc-process-signature", _alias_names)
