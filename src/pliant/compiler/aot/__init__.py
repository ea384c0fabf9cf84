"""Write compiled models to disk, as directories and as C libraries."""
