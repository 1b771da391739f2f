"""Reports: tables, figures and answers in words from runs on disk, as one page and as files."""
