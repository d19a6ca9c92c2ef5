"""Hooks of MkDocs: add pages from outside docs/, and make links between files links between pages.

The navigation in mkdocs.yml names pages by their path in docs/, or by their path in the repository
if they are outside of it: `channels.md`, `CHANGELOG.md`.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).parents[2]
LINK = re.compile(r"\[(?P<text>[^\]]+)\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")


def pages(nav: object) -> list[str]:
    """Return the paths of all pages of a navigation."""
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []
    return [page for entry in entries for page in pages(entry)]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for page in pages(config.nav):
        if files.get_file_from_path(page) is None and (REPOSITORY / page).is_file():
            files.append(File.generated(config, page, abs_src_path=str(REPOSITORY / page)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to files of the repository; keep only the text if the site lacks the file."""
    here = Path(str(page.file.abs_src_path)).relative_to(REPOSITORY).parent.as_posix()
    docs = Path(config.docs_dir).relative_to(REPOSITORY).as_posix()

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link["path"]))
        if not (REPOSITORY / target).exists():
            return link[0]  # left for MkDocs to report
        uri = target.removeprefix(f"{docs}/")
        if files.get_file_from_path(uri) is None:
            return link["text"]
        path = posixpath.relpath(uri, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{link['text']}]({path}{link['anchor'] or ''})"

    return LINK.sub(rewrite, markdown)
