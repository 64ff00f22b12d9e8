"""Errors that a user can cause: one line each, with what was found, what was expected and what to do."""


class BertTfError(Exception):
    """An error that the user can fix. Programs print its message as one line and exit with `exit_status`."""

    exit_status = 1


class ConfigError(BertTfError):
    """A flag, a config field or a combination of them is wrong."""

    exit_status = 2


class DataError(BertTfError):
    """An input file is missing or does not contain what it should."""
