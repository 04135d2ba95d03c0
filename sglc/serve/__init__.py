"""`sglc serve`: HTTP in front of a back end, and gRPC beside it. Requests become segments, their events answers.

One file for each part of the way: bodies, prompts, sampling, work, answers, sending. May import back ends,
the IR and the frontend's templates; programs and their execution are not its business.
"""
