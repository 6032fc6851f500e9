"""Calls a server through the client that openapi-python-client generates from docs/openapi.json."""

import sys
from typing import TypeVar

from tasklane_client import Client
from tasklane_client.api.schedules import delete_schedule, next_times, put_schedule, trigger_schedule
from tasklane_client.api.tasks import cancel_task, get_task, list_tasks, submit_batch, submit_task
from tasklane_client.api.workflows import get_run, start_run
from tasklane_client.models import (
    Accepted,
    BatchAnswer,
    BatchRequest,
    NextTimes,
    PutSchedule,
    RunRequest,
    RunStarted,
    Schedule,
    Status,
    SubmittedTask,
    Task,
    TaskPage,
    TaskRequest,
    TaskRequestMetadata,
    Triggered,
    WorkflowNode,
    WorkflowRun,
)

T = TypeVar("T")


def expect(kind: type[T], answer: object) -> T:
    """The answer, which must be of this kind: a Problem, for instance, is not."""
    if not isinstance(answer, kind):
        raise SystemExit(f"expected {kind.__name__}, not {answer}")
    return answer


def metadata(**pairs: str) -> TaskRequestMetadata:
    return TaskRequestMetadata.from_dict(pairs)


def main(url: str) -> None:
    with Client(base_url=url) as client:
        # Submit and wait: the answer has the result.
        echo = TaskRequest(task_name="echo", task_type="SHELL", payload="echo hello", retry_count=2)
        echo.metadata = metadata(customer="py=1,2")
        done = expect(SubmittedTask, submit_task.sync(client=client, body=echo, wait="30s"))
        assert done.status == Status.SUCCESS and done.retry_count == 2 and done.retries_used == 0, done

        # The same request again, by its key, is the same task.
        first = submit_task.sync_detailed(client=client, body=echo, idempotency_key="py-1")
        assert first.status_code == 201 and first.headers["location"].startswith("/api/v1/tasks/"), first
        again = expect(SubmittedTask, submit_task.sync(client=client, body=echo, idempotency_key="py-1"))
        assert again.duplicate is True and again.task_id == expect(SubmittedTask, first.parsed).task_id, again

        # Read and wait; a field of the answer is a field of a request.
        read = expect(Task, get_task.sync(again.task_id, client=client, wait="30s"))
        assert read.status == Status.SUCCESS and read.payload == "echo hello", read

        # List by metadata.
        page = expect(TaskPage, list_tasks.sync(client=client, metadata=["customer=py=1,2"], status=[Status.SUCCESS]))
        assert {task.task_id for task in page.tasks} == {done.task_id, again.task_id}, page

        # Many at once.
        batch = BatchRequest(tasks=[TaskRequest(task_name=name, task_type="NOOP") for name in ("a", "b")])
        results = expect(BatchAnswer, submit_batch.sync(client=client, body=batch)).results
        assert len(results) == 2 and all(result.task_id for result in results), results

        # Cancel.
        later = TaskRequest(task_name="later", task_type="NOOP", delay="1h")
        waiting = expect(SubmittedTask, submit_task.sync(client=client, body=later))
        expect(Accepted, cancel_task.sync(waiting.task_id, client=client))
        cancelled = expect(Task, get_task.sync(waiting.task_id, client=client, wait="30s"))
        assert cancelled.status == Status.CANCELLED, cancelled

        # A schedule.
        nightly = PutSchedule(cron="0 3 * * *", timezone="Europe/Paris", task=TaskRequest("report", "NOOP"))
        assert expect(Schedule, put_schedule.sync("py-nightly", client=client, body=nightly)).enabled
        assert len(expect(NextTimes, next_times.sync("py-nightly", client=client, count=2)).times) == 2
        fired = expect(Triggered, trigger_schedule.sync("py-nightly", client=client))
        assert expect(Task, get_task.sync(fired.task_id, client=client, wait="30s")).schedule == "py-nightly"
        assert delete_schedule.sync_detailed("py-nightly", client=client).status_code == 204

        # A workflow.
        extract = WorkflowNode(name="extract", task_type="SHELL", payload="echo 7")
        load = WorkflowNode(
            name="load", task_type="SHELL", payload="echo {{ nodes.extract.result.data }}", depends_on=["extract"]
        )
        started = expect(RunStarted, start_run.sync(client=client, body=RunRequest(nodes=[extract, load])))
        run = expect(WorkflowRun, get_run.sync(started.run_id, client=client, wait="30s"))
        assert run.status == Status.SUCCESS and run.counts.succeeded == 2, run
    print("python: submit, wait, list, batch, cancel, schedule, workflow")


main(sys.argv[1])
