"""`grpc://host:port`: servers that speak SGLang's scheduler service, which takes and gives token ids.

May import `backends.http`, whose requests and answers it carries, and everything below the back ends.
"""

from sglc.backends.grpc.grpc_backend import GrpcBackend as GrpcBackend
