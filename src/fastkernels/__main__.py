"""`python -m fastkernels` is `fk`."""

from fastkernels.cli import main

if __name__ == "__main__":
    main(prog_name="fk")
