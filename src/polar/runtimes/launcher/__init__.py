"""The program next to the harness: it starts, limits, reaps and kills a sandbox's processes.

It runs inside the sandbox, or in the harness's own interpreter, so it is standard library only
and is started by `BOOT` without the rest of Polar.
"""

BOOT = "import sys; sys.path.insert(0, {folder!r}); from launcher.roles import main; main()"
"""Python program that starts the launcher; `{folder}` holds this package's folder."""
