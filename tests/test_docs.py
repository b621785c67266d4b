"""The documentation says what the code says: every name, example, table and setting in it."""

import inspect
import re
from pathlib import Path

import pytest

import pyro_deeponet as pdo
from experiments import readme

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PARTS = [
    pdo, pdo.problems, pdo.priors, pdo.guides, pdo.likelihoods, pdo.networks, pdo.metrics,
    pdo.plots,
]  # fmt: skip
#: Methods that need no example of their own: the package's inner workings, not shown in the
#: reference, and what the example of their class shows already.
EXEMPT = {
    "AutoMeanField": {"forward"},
    "BayesianModule": {"evaluate", "forward", "start", "weights"},
    "ByLayer": {"start"},
    "DeepONet": {
        "branch_features", "check_data", "check_inputs", "cost", "example", "prior_of",
        "set_parameters", "to_physical", "trunk_features", "weights",
    },
    "DeepONetELBO": {"differentiable_loss", "loss", "loss_and_grads"},
    "Horseshoe": {"start"},
    "Likelihood": {"sigma", "sigma_", "start_at"},
}  # fmt: skip


def public():
    """Every public name with what it stands for, modules excepted."""
    return {
        f"{part.__name__}.{name}": getattr(part, name)
        for part in PARTS
        for name in part.__all__
        if not inspect.ismodule(getattr(part, name))
    }


def has_docstring(thing):
    """Aliases, tables and numbers have none."""
    return inspect.isclass(thing) or inspect.isfunction(thing)


def own_methods(cls):
    """Public methods and properties that no base of this package has documented, by name."""
    bases = [base for base in cls.__mro__[1:] if base.__module__.startswith("pyro_deeponet")]
    inherited = {name for base in bases for name in vars(base)}
    for name, member in vars(cls).items():
        inner = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if inspect.isfunction(inner) and not name.startswith("_") and name not in inherited:
            yield name, inner


def documented():
    """What the reference shows: full names of objects, and of their members."""
    found = set()
    for page in DOCS.glob("reference/*.md"):
        module = owner = ""
        for line in page.read_text().splitlines():
            if match := re.match(r"\.\. currentmodule:: (\S+)", line):
                module = match[1]
            elif match := re.match(r"\.\. (?:auto\w+|(?:py:)?data):: (\S+)", line):
                owner = match[1] if match[1].startswith("pyro_") else f"{module}.{match[1]}"
                found.add(owner)
            elif match := re.match(r"   :members: (.+)", line):
                found |= {f"{owner}.{member}" for member in match[1].split(", ")}
    return found


@pytest.mark.parametrize("name", [n for n, thing in public().items() if has_docstring(thing)])
def test_every_public_name_has_an_example_that_runs(name):
    thing = public()[name]
    assert ">>> " in (thing.__doc__ or ""), f"{name} has no example in its docstring"
    if inspect.isclass(thing):
        exempt = EXEMPT.get(thing.__name__, set())
        bare = [k for k, f in own_methods(thing) if ">>> " not in (f.__doc__ or "")]
        assert set(bare) <= exempt, f"methods of {name} without an example"


def test_exemptions_are_of_methods_that_exist():
    classes = {thing.__name__: thing for thing in public().values() if inspect.isclass(thing)}
    for name, methods in EXEMPT.items():
        bare = {k for k, f in own_methods(classes[name]) if ">>> " not in (f.__doc__ or "")}
        assert methods <= bare, name


def test_the_reference_shows_every_public_name():
    shown, names = documented(), public()
    again = {id(thing) for name, thing in names.items() if name in shown}
    assert [n for n, thing in names.items() if n not in shown and id(thing) not in again] == []


def test_the_reference_shows_the_methods_that_have_an_example():
    shown = documented()
    for name, thing in public().items():
        if inspect.isclass(thing) and name in shown:
            exempt = EXEMPT.get(thing.__name__, set())
            missing = [k for k, _ in own_methods(thing) if f"{name}.{k}" not in shown]
            assert set(missing) <= exempt, f"{name}: not in docs/reference"


def test_the_reference_shows_nothing_that_is_gone():
    for name in documented():
        thing = pdo
        for part in name.split(".")[1:]:
            thing = getattr(thing, part)


def test_every_guide_with_a_name_is_explained():
    page = (DOCS / "reference" / "guides.md").read_text()
    assert [name for name in pdo.guides.GUIDES if f'| `"{name}"` |' not in page] == []


def test_the_tables_of_the_readme_are_those_of_the_runs():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == readme.updated(text, DOCS), "run python -m experiments.readme"


def test_a_readme_without_a_part_is_refused():
    with pytest.raises(ValueError, match="<!-- results -->"):
        readme.updated("no parts", DOCS)


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_resolve(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = [t.partition("#")[0] for t in re.findall(r"\]\(([^)]+)\)", text) if "://" not in t]
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_module_has_its_place_in_the_architecture():
    table = re.search(r"\| module \|.*?\n\n", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)[0]
    named = set(re.findall(r"`(\w+)`", table))
    folder = ROOT / "pyro_deeponet"
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules - named == set()


def test_commands_that_pages_name_exist():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.glob("howto/*.md")]
    makefile = (ROOT / "Makefile").read_text()
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
        for module in re.findall(r"python -m (experiments[.\w]*)", text):
            path = ROOT / module.rstrip(".").replace(".", "/")
            assert path.with_suffix(".py").exists(), f"{page.name}: python -m {module}"


def test_no_line_of_a_page_is_lost_as_a_comment():
    pages = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *DOCS.glob("*/*.md")]
    lost = [
        f"{page.relative_to(ROOT)}: {line}"
        for page in pages
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("%")
    ]
    assert lost == [], "MyST takes these for comments"
