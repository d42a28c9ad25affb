"""``python -m uprmc`` is the ``uprmc`` command."""

from uprmc.cli.main import main

if __name__ == "__main__":
    main()
