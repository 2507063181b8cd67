"""Looks at a built site: each link, picture, script and anchor of its pages is there; nothing comes from elsewhere.

python -m docs.site.check_links site
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script", "img", "iframe", "source", "video"}  # by the reader's browser, without being asked
FOUND_BY_A_SERVER = {"404.html"}  # whose links begin at the root of a site that is served


class Page(HTMLParser):
    """What a page links to, and the anchors that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []  # the tag, and where it leads
        self.anchors = {"", "__top"}
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors |= {given[name] or "" for name in ("id", "name") if name in given}
        self.links += [(tag, given[name] or "") for name in ("href", "src") if name in given]


def faults(site: Path) -> Iterator[str]:
    pages = {path.resolve(): Page(path) for path in sorted(site.rglob("*.html")) if path.name not in FOUND_BY_A_SERVER}
    for path, page in pages.items():
        for tag, target in dict.fromkeys(page.links):
            if wrong := fault(path, tag, target, pages):
                yield f"{path.relative_to(site.resolve())}: {target} {wrong}"


def fault(path: Path, tag: str, target: str, pages: dict[Path, Page]) -> str | None:
    address = urlsplit(target)
    if address.scheme or address.netloc:
        return "is loaded from elsewhere" if tag in LOADED or tag == "link" else None
    there = (path.parent / unquote(address.path)).resolve() if address.path else path
    if there.is_dir():
        return "is a folder: a file system shows no page there"
    if not there.exists():
        return "is not there"
    if there in pages and address.fragment and unquote(address.fragment) not in pages[there].anchors:
        return "is no anchor there"
    return None


def main() -> None:
    site = Path(sys.argv[1])
    found = list(faults(site))
    print("\n".join([*found, f"{len(found)} links are broken" if found else f"all links of {site} lead somewhere"]))
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
