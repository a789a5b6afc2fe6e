"""Programs that write parts of the documentation; tests hold the pages to them."""
