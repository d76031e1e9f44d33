"""The commands of `hardkuma`, one file each: `add_arguments(parser)` is cheap, `run(arguments)` imports what it needs."""
