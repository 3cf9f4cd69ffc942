"""The command `jobpool`, also as `python -m jobpool`."""

import gc
import signal


def main() -> None:
    """Run the command. While its modules are imported, Ctrl-C ends the process without a traceback."""
    gc.set_threshold(10_000, 20, 20)  # imports leave no garbage, and the search for it took a tenth of a pool's start
    interrupt = signal.getsignal(signal.SIGINT)
    if callable(interrupt):  # else it is ignored, as in the background of a shell's script
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from jobpool.cli.main import cli

    gc.freeze()  # nor is all of it searched at the end of the process: a fifth of a short verb's time
    signal.signal(signal.SIGINT, interrupt)
    cli()


if __name__ == "__main__":
    main()
