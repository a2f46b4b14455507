"""Complete the metadata of a release: links of the project, and a long description whose links lead somewhere.

Hatchling calls this when it builds. PyPI shows the README away from the repository, where its relative links and images
would lead nowhere. GitHub's workflows name the repository; in other builds the README stays as it is.
"""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<image>!?)(?P<text>\[[^\]]*\])\((?P<path>[\w][\w./-]*(?:#[\w-]*)?)\)")


class ReleaseMetadata(MetadataHookInterface):
    """The fields `readme` and `urls`."""

    def update(self, metadata: dict) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("GITHUB_REPOSITORY")
        if repository:
            address = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
            tag = f"v{metadata['version']}"
            text = complete_links(text, f"{address}/blob/{tag}", f"{address}/raw/{tag}")
            metadata["urls"] = {
                "Repository": address,
                "Documentation": f"{address}/blob/{tag}/docs/index.md",
                "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
                "Issues": f"{address}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def complete_links(text: str, pages: str, files: str) -> str:
    """Return Markdown whose relative links begin with the address `pages`, and its images with `files`."""
    return LINK.sub(
        lambda found: f"{found['image']}{found['text']}({files if found['image'] else pages}/{found['path']})", text
    )
