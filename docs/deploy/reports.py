"""The app of the deployment examples."""

import jobpool


@jobpool.handler("report", queue="reports", max_retries=3, timeout=60)
def build_report(ctx: jobpool.JobContext, customer: int, month: str) -> str:
    ctx.progress(0.5, "halfway")
    return f"report for customer {customer}, {month}"
