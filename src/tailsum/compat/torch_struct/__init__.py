"""The names of torch-struct 0.5, on tailsum's structures: `import tailsum.compat.torch_struct as torch_struct`.

Classes, arguments, shapes and index order are the same; docs/torch_struct.md lists the differences.
"""

from typing import TYPE_CHECKING

from tailsum.lazy import on_demand

if TYPE_CHECKING:
    from tailsum.compat.torch_struct.public import *  # noqa: F403

__getattr__, __dir__ = on_demand(__name__)
