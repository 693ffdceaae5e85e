"""Shards of the same chunks of earlier data sets, which are copied instead of made again.

After a change of a corpus only the chunks with a changed row are parsed and tokenised again, because most chunks are
cut at the same rows as before (`rows.read_lines`). The digest of a chunk covers its bytes and everything else that
decides its shard. Only shards of nothing but documents are copied, one from each row: those of a corpus. The earlier
data sets are those in the cache and those that `prepare` wrote elsewhere (`store.cache.record_location`). A damaged
file is not used."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from raytriever.activity import activity
from raytriever.data.formats.chunks import FileChunk
from raytriever.data.formats.plan import Part
from raytriever.data.prepare.prepared import DOCUMENTS, prepared_meta
from raytriever.data.prepare.tokenisation import Tokenisation
from raytriever.errors import StorageError
from raytriever.store.cache import cache_folder, recorded_locations
from raytriever.store.commit import read_manifest, sha256_of

# Endings of the files of a shard: texts, tokens, and where the tokens of each text begin.
_ENDINGS = (".arrow", ".tokens.npy", ".offsets.npy")
_STEM = re.compile(r"\d{5}-\d{6}")


def settings_digest(reads: object, format: str, tokenisation: Tokenisation | None) -> str:
    """Return the SHA-256 over what decides all shards of a data set besides its files.

    `reads` is the version of what is read from files and written to shards.
    """
    decides = [reads, format, tokenisation.digest if tokenisation else None]
    return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


def chunk_digest(settings: str, part: Part, chunk: FileChunk) -> str:
    """Return the BLAKE2b over everything that decides the shard of a chunk, given the `settings_digest`.

    Settings of the parser of its part concern judgements, and shards with these are not copied.
    """
    # The name is that of the class that the parser was in version 0.2.
    parser = getattr(part.parse, "__name__", "").title().replace("_", "") + "()"
    state = hashlib.blake2b(json.dumps([settings, part.kind, parser, part.header]).encode(), digest_size=16)
    state.update(chunk.payload)
    return state.hexdigest()


@dataclass(frozen=True)
class EarlierShards:
    """Shards of earlier preparations; sent to the processes that write shards.

    Args:
        stems: for the digest of a chunk, the folder of documents and the stem of the shard's files.
        digests: SHA-256 of the files, by path.
    """

    stems: Mapping[str, tuple[Path, str]]
    digests: Mapping[Path, str]

    def copy(self, digest: str, folder: Path, stem: str) -> bool:
        """Copy the files of the shard of a chunk; return False if there is none that is whole."""
        if digest not in self.stems:
            return False
        earlier, earlier_stem = self.stems[digest]
        for ending in _ENDINGS:
            source, target = earlier / f"{earlier_stem}{ending}", folder / f"{stem}{ending}"
            if source not in self.digests:  # there are no tokens
                continue
            with suppress(OSError):  # removed meanwhile, or of another user
                shutil.copyfile(source, target)
                if sha256_of(target) == self.digests[source]:
                    continue
            for written in _ENDINGS:
                (folder / f"{stem}{written}").unlink(missing_ok=True)
            return False
        return True


NO_SHARDS = EarlierShards({}, {})


@activity("looking for shards of the same chunks")
def find_earlier(output: Path) -> EarlierShards:
    """Find the shards of earlier preparations, of any data set; `output` may hold an earlier version of this one."""
    stems: dict[str, tuple[Path, str]] = {}
    digests: dict[Path, str] = {}
    for folder in (output, *(cache_folder() / "datasets").glob("*"), *recorded_locations()):
        with suppress(OSError, StorageError):
            meta = prepared_meta(folder)
            if meta is None or "chunks" not in meta:  # made by an earlier version
                continue
            files = read_manifest(folder, verify=None)["files"]
            for stem, digest in meta["chunks"].items():
                is_there = _STEM.fullmatch(stem) and f"{DOCUMENTS}/{stem}{_ENDINGS[0]}" in files
                if is_there and digest not in stems:
                    stems[digest] = folder / DOCUMENTS, stem
                    for ending in _ENDINGS:
                        if entry := files.get(f"{DOCUMENTS}/{stem}{ending}"):
                            digests[folder / DOCUMENTS / f"{stem}{ending}"] = entry["sha256"]
    return EarlierShards(stems, digests)
