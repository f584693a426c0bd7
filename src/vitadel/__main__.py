"""`python -m vitadel` is the command `vitadel`."""

from vitadel.cli import main

if __name__ == "__main__":
    main()
