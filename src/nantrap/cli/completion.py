"""`nantrap completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import argparse
from typing import Final

from nantrap.errors import MissingExtraError

_SHELLS: Final = ("bash", "zsh", "fish", "tcsh", "powershell")


class CompletionCommand:
    """Print a script that completes the commands, options and files of nantrap in your shell.

      nantrap completion bash > ~/.local/share/bash-completion/completions/nantrap
      nantrap completion zsh > "${fpath[1]}/_nantrap"
      nantrap completion fish > ~/.config/fish/completions/nantrap.fish

    Needs shtab: pip install 'nantrap[completion]'.
    """

    name = "completion"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("shell", choices=_SHELLS, metavar="SHELL", help=", ".join(_SHELLS))

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the script."""
        from nantrap.cli import make_parser

        try:
            import shtab
        except ModuleNotFoundError:
            raise MissingExtraError("shtab", extra="completion") from None
        print(shtab.complete(make_parser(), arguments.shell))
        return 0
