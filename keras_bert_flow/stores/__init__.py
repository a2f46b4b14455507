"""Remote storage, such as s3://: read folders through a verified local cache, and publish folders there."""
