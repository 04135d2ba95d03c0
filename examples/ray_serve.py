"""The judge of `judge.py` behind Ray Serve: replicas with a model each, on whichever machines Ray has.

What a replica is asked at once shares the steps of its model, and its cache. On GPUs, give each one:
`ray_actor_options={"num_gpus": 1}`.

    pip install 'sglc[local]' 'ray[serve]'
    cd examples && serve run --working-dir . ray_serve:app
    curl localhost:8000 -d '{"essay": "Bees are good for us."}'
"""

from judge import grade_essay
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=2, max_ongoing_requests=16)
class Judge:
    async def __call__(self, request: Request) -> dict[str, str]:
        result = await grade_essay.arun(**await request.json())
        return {"verdict": result["verdict"], "text": result.text()}


app = Judge.bind()
