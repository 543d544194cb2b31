"""The site: its pages are gathered (``pages``), and what became of them is looked at (``check``)."""
