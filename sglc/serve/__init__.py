"""`sglc serve`: HTTP in front of a back end. Requests become segments, their events answers."""
