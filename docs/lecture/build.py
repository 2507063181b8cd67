"""Build the lecture: a folder that any browser opens, without a network and without a server.

python -m docs.lecture.build [FOLDER]         (make lecture)

index.html     the lecture: chapters, styles and scripts of ``web/`` in one file, and pictures of each chapter's first
               state, which are computed here
slides.html    the same pictures at 16:9, one idea each
python.js      Pyodide, an npm package, and our packages, packed as texts: a page that was opened as a file may load
               scripts, and nothing else
"""

import base64
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from docs.lecture.pages import lecture_page, slides_page

ROOT = Path(__file__).resolve().parents[2]
LECTURE = ROOT / "docs" / "lecture"
PYODIDE = "314.0.7"  # of npm; the first part is its Python
SHA512 = (  # of its archive
    "d18bd7c4485f11da4b7dbfd790cd8114078c44eab488c517d9bcf31fda4eb6dc"
    "8c716930abe1db139bb2b860fcd8b37bcb6abe48dbe2ffa579244b0e943d91d4"
)
OF_PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
LAYERS = {"collectives": "dear_mpi/collectives", "kernels": "dear_mpi/kernels", "dear_mpi": "dear_mpi"}
NOT_THERE = ("torch", "advise", "bench", "blame", "cli", "doctor", "cuda")  # folders that the page does not need


def build(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python.js").write_text(python_script(fetched(folder.parent / "npm")), encoding="utf-8")
    (folder / "index.html").write_text(lecture_page(), encoding="utf-8")
    (folder / "slides.html").write_text(slides_page(), encoding="utf-8")


def fetched(cache: Path) -> Path:
    """The files of Pyodide; npm is asked for them once."""
    there, archive = cache / f"pyodide-{PYODIDE}", cache / f"pyodide-{PYODIDE}.tgz"
    if there.is_dir():
        return there
    cache.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", "--silent", f"pyodide@{PYODIDE}"]
    try:
        subprocess.run(command, cwd=cache, check=True, stdout=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"make lecture needs npm and its registry, where Pyodide is: {error}") from None
    if hashlib.sha512(archive.read_bytes()).hexdigest() != SHA512:
        raise SystemExit(f"{archive} is not the pyodide {PYODIDE} that this was written for: its checksum differs")
    with tempfile.TemporaryDirectory(dir=cache) as folder, tarfile.open(archive) as packed_files:
        for name in (*OF_PYODIDE, "pyodide-lock.json"):
            source = packed_files.extractfile(f"package/{name}")
            assert source is not None, "it is a file"
            (Path(folder) / name).write_bytes(source.read())
        shutil.copytree(folder, there)
    archive.unlink()
    return there


def python_script(pyodide: Path) -> str:
    """What hands the worker all that it needs, when it is loaded."""
    files = {name: packed((pyodide / name).read_bytes()) for name in OF_PYODIDE}
    files["packages.zip"] = packed(packages())
    info = json.loads((pyodide / "pyodide-lock.json").read_text(encoding="utf-8"))["info"]
    given = {"files": files, "lock": {"info": info, "packages": {}}}
    worker = (LECTURE / "web" / "worker.js").read_text(encoding="utf-8")
    return f"lectureHasPython({json.dumps(worker)}, {json.dumps(given, separators=(',', ':'))});\n"


def packed(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")


def packages() -> bytes:
    """Our packages as Python finds them, the desk of the lecture, and what stands for libraries that are not there."""
    with io.BytesIO() as memory:
        with zipfile.ZipFile(memory, "w") as archive:  # not compressed: it is packed as a whole
            for name, path in sorted(python_files().items()):
                archive.writestr(zipfile.ZipInfo(name), path.read_bytes())
        return memory.getvalue()


def python_files() -> dict[str, Path]:
    """By the name in the archive."""
    found = {}
    for layer, name in LAYERS.items():
        for path in (ROOT / layer).rglob("*.py"):
            inside = path.relative_to(ROOT / layer)
            if path.resolve() == path and not set(inside.parts) & set(NOT_THERE):
                found[f"{name}/{inside.as_posix()}"] = path
    for path in (LECTURE / "standin").rglob("*.py"):
        found[path.relative_to(LECTURE / "standin").as_posix()] = path
    for path in (LECTURE / "desk").glob("*.py"):
        found[f"docs/lecture/desk/{path.name}"] = path
    return found


if __name__ == "__main__":
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/lecture")
    build(target)
    print(f"Open {target / 'index.html'} and {target / 'slides.html'} in a browser.")
