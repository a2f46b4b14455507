"""Tell local paths from remote addresses such as gs://bucket/x, refuse the latter where they are unsupported, and hide
the credentials in addresses that are shown or stored.
"""

import re
from pathlib import Path

from keras_bert_flow.terminal import QUERY_SECRET, hide_credentials, hide_in_addresses

# A scheme of RFC 3986; `Path("gs://bucket/x")` is `gs:/bucket/x`, which would be a local folder `gs:`.
_ELSEWHERE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*:)(?:/+|$)")
# user:password@ before the host or bucket. A secret key of S3 may hold a slash, so a password may, but does not begin
# with a port and a slash; an access point of S3 is named arn:aws:…
_PASSWORD = re.compile(r"(?!arn:)[^/@]*:(?!\d*(?:/|$)).*@")


def find_address(path: str | Path) -> str | None:
    """Return the address of a remote path, such as gs://bucket/x; None for a local path.

    Raises:
        ValueError: it holds a password or a signature, which manifests, logs and messages would show.
    """
    match = _ELSEWHERE.match(str(path))
    if match is None:
        return None
    scheme, rest = match[1], str(path)[match.end() :]
    if password := _PASSWORD.match(rest):
        raise ValueError(
            f"An address must not hold a password. Received: one in {scheme}//***@{rest[password.end() :]}. Leave it "
            "out, and give credentials in the environment, such as AWS_ACCESS_KEY_ID or HADOOP_USER_NAME."
        )
    if QUERY_SECRET.search(rest):
        raise ValueError(
            f"An address must not hold a token or a signature. Received: {hide_credentials(f'{scheme}//{rest}')}. "
            "Leave it out, and give credentials in the environment; or download the file first."
        )
    return f"{scheme}//{rest}"


def check_public(text: str) -> None:
    """Check a setting, such as an option of Beam's that holds an address, which is stored with the results.

    Raises:
        ValueError: an address in it holds credentials.
    """
    if (hidden := hide_in_addresses(text)) != text:
        raise ValueError(
            f"An address in a setting must not hold a password. Received: {hidden}. Leave it out, and give credentials "
            "in the environment."
        )


def find_scheme(address: str) -> str:
    """Return the scheme of an address such as s3://bucket/x, in lower case."""
    return address.partition("://")[0].lower()


def name_path(path: str | Path) -> str:
    """Return a path as the user wrote it: a remote one with both slashes after its scheme."""
    return find_address(path) or str(Path(path))


def check_local(path: str | Path, name: str = "The output") -> Path:
    """Check that a path is local, and return it.

    Args:
        path: as the user gave it.
        name: what the path is, to begin the error message with.
    Raises:
        ValueError: it begins with a scheme, such as gs://, s3://, hdfs:// or file://.
    """
    if given := find_address(path):
        raise ValueError(
            f"{name} must be on a local disk, unlike text, records, models and what is made of them. "
            f"Received: {given}. Give a path without a scheme, and copy the files."
        )
    return Path(path)
