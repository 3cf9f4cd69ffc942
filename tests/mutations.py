"""Break the product in many places, one at a time, and tell which default test notices each.

    python tests/mutations.py            all of them: some minutes
    python tests/mutations.py sqlite     those whose name holds this word

It works in a copy of the repository with an environment of its own, so that the children of the tests are broken too.
Continuous integration does not run it: run it after a change of what the default tests leave to `--all`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
BACKENDS = "backends/jobpool_backends"
POOL = "pool/jobpool"
LAWS = "tests/contract"
BROKERS = ("beanstalk", "memory", "postgres", "redis", "redis-cluster", "servicebus", "sqlite")
"""A mutation of one of these runs the tests that are on it."""
LIMIT_S = 600
"""Seconds for the tests of one mutation: some make a test wait for what never comes."""


class Mutation(NamedTuple):
    """One line of the product, what takes its place, and the tests that should notice."""

    name: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = [
    Mutation(
        "sqlite: the fence is not checked",
        f"{BACKENDS}/sqlite/settle.py",
        "return Settled.OK if lease.owner_token == owner_token(fact.holder, fact.seq) else Settled.NOT_OWNER",
        "return Settled.OK",
        f"{LAWS}/test_settle_law.py {LAWS}/test_own_leases_law.py",
    ),
    Mutation(
        "redis: the fence is not checked",
        f"{BACKENDS}/redis/lua/check_holder.lua",
        "return sub(text, 1, 16) == holder and 'o' or 'w'",
        "return 'o'",
        f"{LAWS}/test_settle_law.py {LAWS}/test_own_leases_law.py",
    ),
    Mutation(
        "postgres: an ack after the lease's end is taken",
        f"{BACKENDS}/postgres/sql/settle.sql",
        "AND {deadline} > now\n                AND (m.xmax",
        "AND (m.xmax",
        f"{LAWS}/test_settle_law.py {LAWS}/test_own_leases_law.py",
    ),
    Mutation(
        "postgres: a reap takes leases 5 s before their end",
        f"{BACKENDS}/postgres/sql/reap.sql",
        "m.state = 2 AND m.deadline <= now AND m.claim IS NULL",
        "m.state = 2 AND m.deadline <= now + 5000000 AND m.claim IS NULL",
        f"{LAWS}/test_reap_law.py {LAWS}/test_settle_law.py",
    ),
    Mutation(
        "redis: a crash is not counted",
        f"{BACKENDS}/redis/lua/reap.lua",
        "window and 1 or math.min(before, 2 ^ 32) + 1",
        "window and 1 or math.min(before, 2 ^ 32)",
        f"{LAWS}/test_reap_law.py {LAWS}/test_dead_law.py",
    ),
    Mutation(
        "memory: a nack counts no attempt",
        f"{BACKENDS}/memory/store.py",
        "entry.attempts += 1",
        "entry.attempts += 0",
        f"{LAWS}/test_settle_law.py {LAWS}/test_dead_law.py",
    ),
    Mutation(
        "servicebus: a nack counts no attempt",
        f"{BACKENDS}/servicebus/settle.py",
        "attempts=record.attempts + 1)",
        "attempts=record.attempts)",
        f"{LAWS}/test_settle_law.py {LAWS}/test_same_message_law.py",
    ),
    Mutation(
        "servicebus: settled before its copies are sent",
        f"{BACKENDS}/servicebus/settle.py",
        "if not plan.copies or plan.held.copied]",
        "if plan is not None]",
        f"{LAWS}/test_lacking_law.py {LAWS}/test_same_message_law.py tests/unit/backends/test_servicebus_traps.py "
        "tests/unit/backends/test_servicebus_trouble.py tests/unit/backends/test_servicebus_calls.py",
    ),
    Mutation(
        "beanstalk: follow-ups are lost",
        f"{BACKENDS}/beanstalk/settle.py",
        "elif kind is Ack and not brought:",
        "elif kind is Ack:",
        f"{LAWS}/test_follow_up_law.py {LAWS}/test_enqueue_law.py",
    ),
    Mutation(
        "memory: follow-ups are lost",
        f"{BACKENDS}/memory/store.py",
        "            self.add(brought, brought=True)\n",
        "            pass\n",
        f"{LAWS}/test_follow_up_law.py {LAWS}/test_enqueue_law.py",
    ),
    Mutation(
        "redis cluster: what a settlement brings elsewhere is lost",
        f"{BACKENDS}/redis/backend.py",
        "            self._enqueuer.relay(queues)\n",
        "            pass\n",
        f"{LAWS}/test_follow_up_law.py {LAWS}/test_move_law.py",
    ),
    Mutation(
        "redis: a lock is not freed with the settlement",
        f"{BACKENDS}/redis/lua/settle.lua",
        "        release_guards(q, work.guarded)\n",
        "",
        f"{LAWS}/test_guard_law.py",
    ),
    Mutation(
        "memory: a lock outlives its lease",
        f"{BACKENDS}/memory/places.py",
        ".values() if entry.deadline > self._turn.boot]",
        ".values()]",
        f"{LAWS}/test_guard_law.py",
    ),
    Mutation(
        "postgres: an ack does not mark its key done",
        f"{BACKENDS}/postgres/sql/settle.sql",
        "IF done_key IS NOT NULL THEN",
        "IF false THEN",
        f"{LAWS}/test_done_law.py",
    ),
    Mutation(
        "sqlite: a unique key is not honoured",
        f"{BACKENDS}/sqlite/enqueue.py",
        "existing = _leave_out_unique(step, fresh)",
        "existing: dict[str, str] = {}",
        f"{LAWS}/test_unique_law.py",
    ),
    Mutation(
        "sqlite: a rate allows one start more",
        f"{BACKENDS}/sqlite/keys.py",
        "rate.most - counted",
        "rate.most + 1 - counted",
        f"{LAWS}/test_rate_law.py {LAWS}/test_guard_law.py",
    ),
    Mutation(
        "redis: a rate allows one start more",
        f"{BACKENDS}/redis/lua/rates.lua",
        "if count < most or",
        "if count <= most or",
        f"{LAWS}/test_rate_law.py {LAWS}/test_guard_law.py",
    ),
    Mutation(
        "redis: a dead letter has no reason",
        f"{BACKENDS}/redis/lua/settle.lua",
        "push(work.edits, {member, 'reason', ARGV[at]})",
        "push(work.edits, {member, 'reason', ''})",
        f"{LAWS}/test_settle_law.py {LAWS}/test_dead_letters_law.py",
    ),
    Mutation(
        "sqlite: a repeated call is settled again",
        f"{BACKENDS}/sqlite/settle.py",
        "    if known is not None:\n        return [REPEATED",
        "    if known is None and known:\n        return [REPEATED",
        f"{LAWS}/test_settle_law.py {LAWS}/test_follow_up_law.py",
    ),
    Mutation(
        "envelope: a signature is not verified",
        f"{POOL}/message/signing.py",
        "if compare_digest(keyed.digest(signed), sig):",
        "if signed:",
        "tests/unit/message/test_signing.py",
    ),
    Mutation(
        "pool: an expired job is run",
        f"{POOL}/policy/inspection.py",
        "if expires is not None and now() >= expires:",
        "if expires is not None and now() < 0:",
        "tests/unit/policy/test_inspection.py tests/contract/test_expiry_law.py",
    ),
    Mutation(
        "pool: leases are not renewed",
        f"{POOL}/master/threads.py",
        "if boot < delivery.lease.expires_at < boot + 2 * delivery.lasts / 3:",
        "if boot < delivery.lease.expires_at < boot:",
        "tests/unit/master/test_threads.py tests/faults/test_long_jobs.py",
    ),
    Mutation(
        "pool: a failed job is acked",
        f"{POOL}/policy/decide.py",
        'return _failed("failed", error, lease, rules, retry, cause=_output_unless_crashed(lease, cause))',
        "return ACK",
        "tests/unit/policy/test_decide.py",
    ),
    Mutation(
        "pool: a retry waits for nothing",
        f"{POOL}/policy/retry.py",
        "return min(limit, max(0.0, self._jittered(delay)))",
        "return 0.0 * delay",
        "tests/unit/policy/test_retry_policy.py",
    ),
    Mutation(
        "pool: a timeout kills ten seconds late",
        f"{POOL}/master/deadlines.py",
        "now < deadline + pool.settings.kill_grace:",
        "now < deadline + 10 + pool.settings.kill_grace:",
        "tests/unit/master/test_plan.py tests/faults/test_timeouts.py",
    ),
    Mutation(
        "pool: the memory limit is off",
        f"{POOL}/master/deadlines.py",
        "elif 0 < limit < slot.rss and",
        "elif 0 < limit < 0 and",
        "tests/unit/master/test_plan.py tests/faults/test_memory_limits.py",
    ),
    Mutation(
        "pool: a stop has no grace",
        f"{POOL}/master/plan.py",
        "over = pool.stopping is Stopping.KILL or now >= pool.stop_by",
        "over = pool.stopping is Stopping.KILL or now >= 0",
        "tests/unit/master/test_plan.py tests/faults/test_stops.py",
    ),
    Mutation(
        "pool: a result of a former attempt is taken",
        f"{POOL}/master/slots.py",
        "if not self.deliveries or self.deliveries[0].nonce != nonce:",
        "if not self.deliveries:",
        "tests/unit/master/test_slots.py tests/unit/master/test_plan.py tests/faults/test_late_answers.py",
    ),
    Mutation(
        "child: output has no cap",
        f"{POOL}/message/capped_text.py",
        "free = self._room - len(self._head)",
        "free = 2**40 - len(self._head)",
        "tests/unit/child/test_child_output.py tests/unit/child/test_child_capture.py",
    ),
    Mutation(
        "cron: two schedulers fire an instant twice",
        f"{POOL}/cron/firing.py",
        'return f"{name} at {rfc3339(at)}"',
        'return f"{name} at {rfc3339(at)} {id(at)}"',
        "tests/unit/cron/test_run_firing.py tests/faults/test_three_schedulers.py",
    ),
]


def copied(folder: Path) -> Path:
    """Copy the files that git knows, and the environment, which then imports the copy."""
    copy = folder / "copy"
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, files.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    shutil.copytree(ROOT / ".venv", copy / ".venv", symlinks=True)
    for file in [*(copy / ".venv" / "bin").iterdir(), *(copy / ".venv").glob("lib/*/site-packages/*.pth")]:
        if not file.is_symlink() and str(ROOT).encode() in (data := file.read_bytes()):
            file.write_bytes(data.replace(str(ROOT).encode(), str(copy).encode()))
    return copy


def noticed(copy: Path, mutation: Mutation) -> str:
    """Break the copy, run the tests, mend it; return a test that fails with the mutation alone, or an empty text."""
    path = copy / mutation.file
    whole = path.read_text("utf-8")
    assert whole.count(mutation.old) == 1, f"{mutation.name}: {mutation.file} does not hold its line once"
    path.write_text(whole.replace(mutation.old, mutation.new), "utf-8")
    broker = mutation.name.partition(":")[0].replace(" ", "-")
    words = ["-k", broker] if broker in BROKERS else []
    try:
        failed = failures(copy, "--maxfail=3", *words, *mutation.tests.split())
    except subprocess.TimeoutExpired:
        return "the tests do not end"
    finally:
        path.write_text(whole, "utf-8")
    return next((test for test in failed if not failures(copy, test)), "")


def failures(copy: Path, *words: str) -> list[str]:
    """Run these tests in the copy, and return those that fail."""
    command: list[str | Path] = [copy / ".venv/bin/python", "-m", "pytest", "-q", "--tb=no", "-p", "no:cacheprovider"]
    command += ["-n", "2", "--dist", "loadgroup", *words]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode in (0, 1, 2), done.stdout + done.stderr  # 2 after three failures
    named = re.findall(r"^(?:FAILED|ERROR) (.+?)(?:@[\w-]+)?(?: - .*)?$", done.stdout, re.MULTILINE)
    return list(dict.fromkeys(named))


def main(word: str = "") -> int:
    """Try each mutation whose name holds the word, and print a row for each as it is known."""
    chosen = [mutation for mutation in MUTATIONS if word in mutation.name]
    missed = 0
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        copy = copied(Path(folder))
        for mutation in chosen:
            began = time.monotonic()
            test = noticed(copy, mutation)
            missed += not test
            print(f"| {mutation.name} | {test or 'NOT NOTICED'} | {time.monotonic() - began:.0f} s |", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
