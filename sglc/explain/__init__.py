"""What a compiled program will do: estimated before it runs, compared afterwards, as text, data and a page."""
