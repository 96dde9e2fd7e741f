"""What the pages of all applications share: their templates, tables, pictures and numbers."""

from importlib.util import find_spec

if missing := [name for name in ("jinja2", "matplotlib", "pandas") if find_spec(name) is None]:
    raise ImportError(f"Reports need more packages ({', '.join(missing)}): pip install 'tailsum[plot,report]'")
