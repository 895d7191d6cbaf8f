"""The graph: operations, types, building, checking, text, files and drawing."""
