"""The demo: a real pretrained sentence encoder, converted, verified and timed."""
