"""Example agents, each a program of its own that runs where its library is installed.

Polar never imports them: a sandbox is shown this folder, and the harness's own Python runs them.
Each reads its settings from the JSON file that its command line names, and the task from the
variable POLAR_INSTRUCTION, or at the terminal.
"""
