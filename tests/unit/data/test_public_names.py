from __future__ import annotations

from raytriever.data.pydocs.builder import PublicNames


def test_the_shortest_public_name_wins() -> None:
    names = PublicNames()
    names.read(
        "pkg",
        "pkg",
        "from .linalg import (\n    solve,  # a remark\n    det as determinant,\n)\nfrom pkg.frame import Frame\n",
    )
    names.read("pkg.linalg", "pkg.linalg", "from ._basic import *\nfrom ._basic import inv, \\\n    norm\n")
    names.read("pkg.core.api", "pkg.core", "from .series import Series\n")
    names.read("pkg.core", "pkg.core", "from pkg.core.api import Series\nfrom ..linalg._basic import lu\n")
    names.read("other", "other", "from pkg._secret import thing\n")
    assert names.of("pkg.linalg._basic", "solve") == "pkg.solve"
    assert names.of("pkg.linalg._basic", "det") == "pkg.determinant"
    assert names.of("pkg.linalg._basic", "inv") == "pkg.linalg.inv"
    assert names.of("pkg.linalg._basic", "lu") == "pkg.core.lu"
    assert names.of("pkg.frame", "Frame") == "pkg.Frame"
    assert names.of("pkg.core.series", "Series") == "pkg.core.Series"
    assert names.of("pkg.plain", "f") == "pkg.plain.f"
    assert names.of("pkg._secret", "thing") is None


def test_imports_in_a_ring_come_to_an_end() -> None:
    names = PublicNames()
    names.read("a", "a", "from .b import *\n")
    names.read("a.b", "a.b", "from .. import *\nfrom a import x\n")
    assert names.of("a.b", "x") == "a.x"
