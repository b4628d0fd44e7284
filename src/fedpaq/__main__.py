"""``python -m fedpaq``: the command line, also under torchrun."""

from fedpaq.cli import main

if __name__ == "__main__":
    main()
