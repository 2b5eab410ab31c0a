"""The command `omnizmq`, also as `python -m omnizmq`. An interrupt is answered from here on, whatever is imported."""

from omnizmq import interrupts


def main() -> None:
    """The entry point of the command."""
    interrupts.hold()
    try:
        from omnizmq import cli

        cli.main()
    finally:
        interrupts.end_at_once()


if __name__ == "__main__":
    main()
