"""The names of torch-struct 0.5, over tailsum's own structures: `import tailsum.compat.torch_struct as torch_struct`.

Same classes, arguments, shapes and index order; docs/torch_struct.md says what differs, and why.
"""

from typing import TYPE_CHECKING

from tailsum.lazy import on_demand

if TYPE_CHECKING:
    from tailsum.compat.torch_struct.public import *  # noqa: F403

__getattr__, __dir__ = on_demand(__name__)
