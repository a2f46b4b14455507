"""Read folders at other places, such as s3://, through a verified cache on this disk, and publish folders there."""
