"""The subcommands ``vegas bench``, ``tune``, ``report`` and ``inspect``; `vegas_spec.cli` finds them by entry point."""
