"""The tests. They mirror src/attnflow folder by folder."""
