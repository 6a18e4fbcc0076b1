"""Tables, terminal plots and self-contained HTML pages."""
