"""The stand-in's packages are not for ``--doctest-modules``: they are importable as ``cupy`` alone."""

collect_ignore_glob = ["cupy*"]
