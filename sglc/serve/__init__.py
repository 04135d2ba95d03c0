"""`sglc serve`: HTTP and gRPC in front of a back end. Requests become segments, their events answers.

One file for each part of the way: bodies, prompts, sampling, work, answers, sending. May import back ends,
the IR and the frontend's templates; programs and their execution are not its business.
"""
