"""What commands show to people: lines of text for a width, and how they reach a terminal."""
