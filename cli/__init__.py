"""The commands of `hardkuma`, one file each.

A command is a module with SUMMARY, EXAMPLES, `add_arguments(parser)`, `check(arguments)` and `run(arguments)`; one that
reads its own arguments has SUMMARY and `main(arguments)`. Importing it is cheap: what is heavy is imported when it runs.
"""
