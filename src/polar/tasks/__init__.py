"""Tasks: the file format that users write, and the generated family of the demo."""

from polar.tasks.format import read_tasks, write_tasks
from polar.tasks.paths import check_path, lay_out
from polar.tasks.shell_family import generate

__all__ = ["check_path", "generate", "lay_out", "read_tasks", "write_tasks"]
