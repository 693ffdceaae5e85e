"""Errors that a user can correct, each one line: where it is, what is wrong, what to do.

Everything that a person can get wrong (a flag, a file, a row, a model name, a full disk) is raised as a subclass of
`UserError` where it is first detected. The command line prints it as one line and exits with code 2. Any other
exception is a defect of raytriever and keeps its traceback.
"""


class UserError(Exception):
    """Error that a user can correct. Its text is one line: where, what, remedy.

    Args:
        what: what is wrong, with a quotation of the value.
        where: the file, row, flag, argument or field that is wrong.
        remedy: what is right, or what to do.

    Examples:
        >>> try:
        ...     rt.load_dataset("no/such/folder")
        ... except rt.UserError as error:
        ...     print(error.what)
        no data set of this name and no such folder
    """

    def __init__(self, what: str, where: str | None = None, remedy: str | None = None) -> None:
        # Exception keeps the arguments, so that the error can be pickled between processes.
        super().__init__(what, where, remedy)
        self.what, self.where, self.remedy = what, where, remedy

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line}; {self.remedy}" if self.remedy else line


class ConfigError(UserError):
    """A setting is unknown, out of range, without effect, or contradicts another.

    Examples:
        >>> try:
        ...     rt.mine_hard_negatives(data, num_negatives=0)
        ... except rt.ConfigError as error:
        ...     print(error)
        num_negatives: 0 is out of range; give a value at least 1
    """


class DataError(UserError):
    """A data set is missing or broken, or contains something else than its name says.

    Examples:
        >>> try:
        ...     rt.evaluate(["bm25"], data, split="tset")
        ... except rt.DataError as error:
        ...     print(error.what)
        no split 'tset'; there are: dev, test, train
    """


class ModelError(UserError):
    """An encoder cannot be found, loaded or trusted.

    Examples:
        >>> try:
        ...     rt.load_model("./no/such/model")
        ... except rt.ModelError as error:
        ...     print(error.what)
        no such directory
    """


class StorageError(UserError):
    """A file or directory is damaged or incomplete, cannot be written, or exists already.

    Examples:
        >>> report = rt.evaluate(["bm25"], data)
        >>> _ = report.save("lexical")
        >>> try:
        ...     report.save("lexical")
        ... except rt.StorageError as error:
        ...     print(error.what)
        is there already
    """


class LossInputError(UserError, ValueError):
    """A loss has no value for its scores, ids or temperature. It is a `ValueError` too.

    Examples:
        >>> try:
        ...     rt.losses.mann_whitney(torch.zeros(2, 3), torch.tensor([[0], [1]]), temperature=0.0)
        ... except rt.losses.LossInputError as error:
        ...     print(error.remedy)
        give a finite one above 0
    """
