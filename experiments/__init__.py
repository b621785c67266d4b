"""Studies made with the public interface of pyro_deeponet."""

import sys

# The first thing that `python -m experiments...` runs: say what is wrong, in any Python.
if sys.version_info < (3, 10):  # noqa: UP036 - an older one may well get here
    sys.exit(
        f"pyro-deeponet needs Python 3.10 or newer, and this is {sys.version.split()[0]}. "
        "`make demo PYTHON=python3.x` creates .venv with a newer one; then start .venv/bin/python"
    )
try:
    import pyro_deeponet  # noqa: F401
except ModuleNotFoundError as error:
    sys.exit(
        f"{error.name} is not installed in {sys.executable}. In a clone, `make demo` creates an "
        "environment: start .venv/bin/python in place of python. In an environment of your own: "
        "pip install -c constraints.txt -e ."
    )
