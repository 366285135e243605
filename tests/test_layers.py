"""Modules use of each other only what is public, and no module imports the package's root."""

import ast
from functools import cache
from pathlib import Path

import pytest

import attnflow

SOURCE = Path(attnflow.__file__).parent

# Private in name only, or without a public name.
ALLOWED = {
    # The compiled solver, which is the whole package's.
    "_maxflow",
    # What every named tuple has, and what a notebook asks an object for.
    *("_asdict", "_fields", "_replace"),
    *("_repr_html_", "_repr_mimebundle_"),
    # torch: the hooks of a module, in their order.
    *("_forward_hooks", "_forward_hooks_always_called", "_forward_hooks_with_kwargs"),
    # transformers: how a model computes attention, and whether that can be changed.
    *("_attn_implementation", "_can_set_attn_implementation"),
    # argparse: the type of a parser or of a group of its arguments.
    "_ActionsContainer",
}

# What is not right yet, as "module: name", with the name as the module writes it. Entries are only
# ever taken away: the tests fail for a name that is not listed, and for one that is gone.
PRIVATE_NAMES: set[str] = set()
ROOT_IMPORTS: set[str] = set()


@cache
def modules():
    """Return the names and syntax trees of all modules of the package but the root."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ("attnflow", *path.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name != "attnflow":
            found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def private(name):
    return name.startswith("_") and not name.endswith("__") and name != "_" and name not in ALLOWED


def defined(tree):
    """Return the private names that a module gives to something."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return {name for name in names if private(name)}


def private_names(tree):
    """Return the private names of others that a module imports or reads.

    A private name that the module itself gives to something is its own, on whatever object.
    """
    found = set()
    own = defined(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            for alias in node.names:
                if any(map(private, (*source.split("."), alias.name))):
                    found.add(f"from {source} import {alias.name}")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if any(map(private, alias.name.split("."))):
                    found.add(alias.name)
        elif isinstance(node, ast.Attribute) and private(node.attr) and node.attr not in own:
            of_itself = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not of_itself:
                found.add(ast.unparse(node))
    return found


def imports_root(tree):
    """Tell whether a module imports the package itself, which imports all of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            if any(alias.name == "attnflow" for alias in node.names):
                return True
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "attnflow":
            for alias in node.names:
                path = SOURCE / alias.name
                submodule = path.is_dir() or path.with_suffix(".py").exists()
                if not submodule and alias.name not in ALLOWED:
                    return True
    return False


def compare(found, listed):
    new, gone = sorted(found - listed), sorted(listed - found)
    assert not new, "use public names of other modules instead of:\n  " + "\n  ".join(new)
    assert not gone, "these are fixed, take them off the list:\n  " + "\n  ".join(gone)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("from attnflow.flow import _solve", {"from attnflow.flow import _solve"}),
        ("from attnflow._flow import solve", {"from attnflow._flow import solve"}),
        ("def f():\n    import attnflow._flow as flow", {"attnflow._flow"}),
        ("flow._solve()", {"flow._solve"}),
        ("explainer.flow._solve()", {"explainer.flow._solve"}),
        ("self._solve()", set()),
        ("def _solve(): pass\nother._solve()", set()),
        ("from attnflow._maxflow import flow", set()),
        ("pair._replace(a=1)", set()),
        ("flow.__code__", set()),
    ],
)
def test_private_names_are_found(code, found):
    assert private_names(ast.parse(code)) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import attnflow", True),
        ("def f():\n    from attnflow import __version__", True),
        ("from attnflow import _maxflow", False),
        ("from attnflow import graph", False),
        ("from attnflow.graph import AttentionGraph", False),
        ("import attnflow.graph", False),
    ],
)
def test_imports_of_the_root_are_found(code, found):
    assert imports_root(ast.parse(code)) == found


def test_no_module_uses_private_names_of_others():
    found = {f"{name}: {use}" for name, tree in modules().items() for use in private_names(tree)}
    compare(found, PRIVATE_NAMES)


def test_no_module_imports_the_root():
    compare({name for name, tree in modules().items() if imports_root(tree)}, ROOT_IMPORTS)
