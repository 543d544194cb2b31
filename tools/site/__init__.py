"""The site: its pages are gathered (``pages``), and what they became is looked at (``check``)."""
