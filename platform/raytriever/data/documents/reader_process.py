"""Reader of documents in a separate process. So no file can stop an import or exhaust the machine's memory."""

from __future__ import annotations

from contextlib import closing

from raytriever.core.errors import DataError
from raytriever.core.processes import ChildProcess
from raytriever.core.reading.documents import read_document
from raytriever.core.reading.documents.sections import ParsedDocument
from raytriever.core.store.capacity import format_size
from raytriever.data.data_sources import SourceFile, open_stream

_MEMORY = 1_000_000_000  # limit of the process in bytes
# Limits of CPU time in seconds: a constant, and more for each MB of the file. A PDF page of 20 kB takes 0.1 s; HTML and
# Markdown take 0.7 s for each MB. Hostile files can contain work for days.
_SECONDS = dict.fromkeys((read_document.PDF, read_document.WORD, read_document.SLIDES), (30.0, 20.0))
_SECONDS_OF_TEXT = (3.0, 4.0)


class DocumentReader(ChildProcess):
    """Context manager that reads files of a folder."""

    def __init__(self) -> None:
        super().__init__("raytriever.data.documents.reader_process", _MEMORY)

    def read(self, file: SourceFile) -> ParsedDocument:
        """Return the sections of a file; raises `DataError` if it cannot be read within the limits."""
        kind = str(read_document.kind_of_document(file.path))
        if file.size > read_document.most_bytes(kind):
            most = format_size(read_document.most_bytes(kind))
            raise DataError(f"has {format_size(file.size)}, more than {most}", file.where, "divide it")
        first, for_each_mb = _SECONDS.get(kind, _SECONDS_OF_TEXT)
        seconds = first + for_each_mb * file.size / 1e6
        remedy = (
            "print it to a new PDF file, or leave it out" if kind == read_document.PDF else "divide it, or leave it out"
        )
        try:
            document: ParsedDocument = self.call(seconds, _read, file.where, kind)
        except TimeoutError:
            raise DataError(f"takes longer than {seconds:.0f} s to read", file.where, remedy) from None
        except MemoryError:
            raise DataError(f"needs more than {format_size(_MEMORY)} of memory to read", file.where, remedy) from None
        except ChildProcessError as error:
            raise DataError(f"makes the process that reads it die ({error})", file.where, "leave it out") from None
        return document


def _read(where: str, kind: str) -> ParsedDocument:
    with closing(open_stream(where)) as stream:
        return read_document.read_document(stream, where, kind)
