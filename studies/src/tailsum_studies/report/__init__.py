"""What all pages share: their templates, tables, pictures and numbers."""
