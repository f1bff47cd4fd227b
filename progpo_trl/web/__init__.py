"""Pages for this machine alone: templates in which all text is escaped, and a server that only 127.0.0.1 reaches."""
