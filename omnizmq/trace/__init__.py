"""Facts of requests: kept, judged and shown."""
