"""Tasks: the file format that users write, and the generated families."""

from polar.tasks.format import read_tasks, write_tasks
from polar.tasks.paths import check_path, lay_out
from polar.tasks.shell_family import Family, generate

__all__ = ["Family", "check_path", "generate", "lay_out", "read_tasks", "write_tasks"]
