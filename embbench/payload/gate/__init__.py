"""The gate: what a target must prove before any load, in a few dozen requests.

In: an `Endpoint`, the run's texts and a `GatePlan`. Out: a `GateResult`: a table of checks with
PASS, FAIL or WARN and a sentence each, the facts that the load is checked against, and vectors of
known texts. The gate's texts are never part of a timed request.
"""

from embbench.payload.ask import Asker
from embbench.payload.gate.formats import check_dimensions, check_encodings, check_token_ids
from embbench.payload.gate.lengths import check_over_long, check_truncation, find_longest
from embbench.payload.gate.session import Session
from embbench.payload.gate.shape import check_alone, check_batch, check_dimension, check_distinct
from embbench.payload.gate.values import GatePlan, GateResult, Row, Texts
from embbench.targets.endpoint import Endpoint

__all__ = ["GatePlan", "GateResult", "Row", "Texts", "run_gate"]


async def run_gate(
    endpoint: Endpoint, source: Texts, plan: GatePlan, timeout_s: float = 120.0
) -> GateResult:
    """Run all checks against one target.

    Later checks stand on earlier ones, so the first failure may end the table. Raises
    `TargetError` if nobody answers at all.
    """
    async with Asker(endpoint, timeout_s) as asker:
        session = Session(asker, source, plan)
        await find_longest(session)
        if await check_dimension(session) and await check_alone(session):
            await check_batch(session)
            if check_distinct(session):
                await check_truncation(session)
            await check_over_long(session)
            await check_encodings(session)
            await check_token_ids(session)
            await check_dimensions(session)
        return session.result()
