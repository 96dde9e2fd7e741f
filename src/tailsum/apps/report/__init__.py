"""What the pages and pictures of all applications share."""
