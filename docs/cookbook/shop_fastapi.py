"""A web service whose slow work is done by jobs: FastAPI answers at once, with status 202 and the job's id.

    uvicorn shop_fastapi:app
    jobpool --app shop_fastapi.py --queue orders

The pool imports this module too, with FastAPI, once for all children. A larger service keeps its handlers apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, status
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import jobpool


class Order(BaseModel):
    customer: str
    cents: int


@jobpool.handler(queue="orders", max_retries=3)
async def ship(number: int, order: Order) -> str:
    return f"order {number} of {order.customer} is on its way"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    with jobpool.Jobs() as jobs:  # connects at the first job
        app.state.jobs = jobs
        yield


app = FastAPI(lifespan=lifespan)


@app.put("/orders/{number}", status_code=status.HTTP_202_ACCEPTED)
async def place_order(number: int, order: Order, request: Request) -> dict[str, str]:
    job = ship.define(number, order).identifier(f"order-{number}")  # the same call again adds no second job
    async with asyncio.timeout(5):
        return {"job": await request.app.state.jobs.aenqueue(job)}


@app.exception_handler(TimeoutError)
@app.exception_handler(jobpool.BackendUnavailable)
async def try_again(_: Request, error: Exception) -> JSONResponse:
    """Ask the client to call again: the job may be enqueued or not, and its identifier makes that harmless."""
    detail = {"detail": f"the order may not have arrived: {str(error) or 'the broker is slow'}"}
    return JSONResponse(detail, status.HTTP_503_SERVICE_UNAVAILABLE, {"Retry-After": "5"})
