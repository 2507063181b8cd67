"""Write self-contained pages: one file each, without network or server."""
