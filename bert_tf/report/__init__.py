"""Reports about runs: self-contained HTML pages, PNG plots and Markdown tables."""
