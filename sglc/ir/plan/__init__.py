"""Plans and their segments: what passes make, back ends run, and files hold; and the dataflow of a segment.

May import: errors and the top of ir. The runtime sees `segment`, `events` and `dataflow` of it.
"""
