"""The documentation as a site, built by `scripts/site`: the README is its first page."""

project = "jobpool"
html_title = "jobpool"
extensions = ["myst_parser"]
html_theme = "furo"
exclude_patterns = ["cookbook", "demo", "deploy"]
myst_heading_anchors = 4
