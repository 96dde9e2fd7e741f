"""Run the README's example in the Python that runs this file, whatever that has installed: `make check-dist`."""

import re
import sys
from pathlib import Path

(example,) = re.findall(r"```python\n(.*?)```", (Path(__file__).parents[1] / "README.md").read_text("utf-8"), re.DOTALL)

if __name__ == "__main__":
    exec(compile(example, "README.md", "exec"), {})
    sys.stdout.write("The README's example runs.\n")
