"""The commands for one model: plan, convert, verify, and find causes of an error."""
