"""The errors a user can cause, each one line: what was found, what was expected, what to do."""


class BertTfError(Exception):
    """Something the user can mend. Programs print its one line and exit with `exit_status`."""

    exit_status = 1


class ConfigError(BertTfError):
    """A flag, a config field or a combination of them is wrong."""

    exit_status = 2


class DataError(BertTfError):
    """A file that was named does not hold what it should."""
