"""Programs: jaxprs with inlined calls and named values, read as neutral graphs."""
