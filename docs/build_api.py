"""Writes the API reference from the docstrings, as HTML without network.

    python docs/build_api.py docs/api

Every public module gets a page. Needs pdoc (the extra `docs`).
"""

import pkgutil
import sys
import warnings
from pathlib import Path

import pdoc

import hmcl_jax


def modules() -> list[str]:
    """All public modules of the package."""
    found = pkgutil.walk_packages(hmcl_jax.__path__, "hmcl_jax.")
    return ["hmcl_jax", *(m.name for m in found if "._" not in m.name)]


def build(out: Path) -> list[Path]:
    """Pages of all modules, below a folder."""
    pdoc.render.configure(docformat="google", footer_text="hmcl_jax")
    names = modules()
    # Packages bring their public modules; those that only some of them name are given besides.
    warnings.filterwarnings("ignore", "The module specification .* adds a module named")
    warnings.filterwarnings("ignore", "Error parsing type annotation")  # imports for types alone
    pdoc.pdoc(*names, output_directory=out)
    pages = [out / f"{name.replace('.', '/')}.html" for name in names]
    missing = [str(page) for page in pages if not page.is_file()]
    if missing:
        sys.exit(f"build_api: no page was written for {', '.join(missing)}")
    return pages


if __name__ == "__main__":
    print(f"{len(build(Path(sys.argv[1])))} pages in {sys.argv[1]}")
