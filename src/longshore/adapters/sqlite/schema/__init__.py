"""The schema: numbered files, applied in order, never edited once released."""
