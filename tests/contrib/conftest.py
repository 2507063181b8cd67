"""Tests of extras. Those of an extra whose folder was deleted are left out."""

from configparser import ConfigParser

from dear_mpi.collectives.program.user_file import entry_points_of
from tests.rooms import DELETED, EXTRAS, ROOT

collect_ignore = DELETED + ["test_look.py"] * (not (ROOT / "dear_mpi" / "contrib" / "look.py").exists())

for name in set(EXTRAS) - set(DELETED):
    published = ConfigParser(delimiters="=")
    published.read(ROOT / "dear_mpi" / "contrib" / name / "entry_points.ini")
    for group in published.sections():
        lacking = published[group].keys() - entry_points_of(group.removeprefix("dear_mpi.")).keys()
        assert not lacking, f"the installation does not know {', '.join(lacking)} of the extra {name}: make install"
