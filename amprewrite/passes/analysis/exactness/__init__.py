"""The rules by which exact arguments begin at loops, and end."""
