"""The command `jobpool`, also as `python -m jobpool`."""

import signal


def main() -> None:
    """Run the command. While its modules are imported, Ctrl-C ends the process without a traceback."""
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt):  # else it is ignored, as in the background of a shell's script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from jobpool.cli.main import cli

    signal.signal(signal.SIGINT, interrupt)
    cli()


if __name__ == "__main__":
    main()
