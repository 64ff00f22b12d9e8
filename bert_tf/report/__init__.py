"""Self-contained HTML pages about what a run did."""
