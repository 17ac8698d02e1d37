"""`python -m polar`, which torchrun needs to start it."""

from polar.cli.app import main

if __name__ == "__main__":
    main()
