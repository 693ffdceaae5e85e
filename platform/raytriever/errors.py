"""The errors a user can mend, each one line: where it is, what is wrong, what would be right.

Everything a person may get wrong (a flag, a file, a row, a model name, a full disk) is raised as a subclass of
`UserError` at the boundary where it is noticed. The command line prints it as one line and exits with code 2; any
other exception is a defect of raytriever and keeps its traceback.
"""


class UserError(Exception):
    """A mistake or a missing thing outside raytriever, told in one line.

    Args:
        what: what is wrong, quoting what came.
        where: the file, row, flag or field it is wrong in.
        remedy: what would be right, or what to do.
    """

    def __init__(self, what: str, where: str | None = None, remedy: str | None = None) -> None:
        # Passed on whole so that the exception survives pickling between processes.
        super().__init__(what, where, remedy)
        self.what, self.where, self.remedy = what, where, remedy

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line


class ConfigError(UserError):
    """A flag or a field of a configuration file is unknown, out of range or contradicts another."""


class DataError(UserError):
    """A data set is missing, broken or not what its name says."""


class ModelError(UserError):
    """An encoder cannot be found, loaded or trusted."""


class StorageError(UserError):
    """Something on disk is torn or cannot be written."""


class LossInputError(UserError, ValueError):
    """A loss was given scores, ids or a temperature for which it has no value."""
