// Calls a server through openapi-fetch and the types that openapi-typescript generates from docs/openapi.json.

import createClient from "openapi-fetch";
import type { components, paths } from "./generated/api.js";

const url = process.argv[2]!;
const client = createClient<paths>({ baseUrl: url });

/** The data of an answer; a problem ends the check. */
function data<T>(answer: { data?: T; error?: unknown; response: Response }): T {
  if (answer.data === undefined) {
    throw new Error(`${answer.response.url}: ${answer.response.status} ${JSON.stringify(answer.error)}`);
  }
  return answer.data;
}

function check(holds: boolean, about: unknown): void {
  if (!holds) throw new Error(JSON.stringify(about));
}

const wait = { query: { wait: "30s" } };

// Submit and wait: the answer has the result.
const echo: components["schemas"]["TaskRequest"] = {
  taskName: "echo",
  taskType: "SHELL",
  payload: "echo hello",
  retryCount: 2,
  metadata: { customer: "ts=1,2" },
};
const done = data(await client.POST("/api/v1/tasks", { params: wait, body: echo }));
check(done.status === "SUCCESS" && done.retryCount === 2 && done.retriesUsed === 0, done);

// The same request again, by its key, is the same task.
const keyed = { params: { header: { "Idempotency-Key": "ts-1" } }, body: echo };
const first = await client.POST("/api/v1/tasks", keyed);
check(first.response.status === 201 && first.response.headers.get("location") !== null, first.error);
const again = data(await client.POST("/api/v1/tasks", keyed));
check(again.duplicate === true && again.taskId === data(first).taskId, again);

// Read and wait.
const byId = (id: string) => ({ params: { path: { id }, ...wait } });
const read = data(await client.GET("/api/v1/tasks/{id}", byId(again.taskId)));
check(read.status === "SUCCESS" && read.payload === "echo hello", read);

// A task that was read can be sent again.
const { taskName, taskType, payload, metadata, retryCount, retryPolicy } = read;
const copy = { taskName, taskType, payload, metadata, retryCount, retryPolicy };
const sent = data(await client.POST("/api/v1/tasks", { params: wait, body: copy }));
check(sent.retryCount === 2, sent);

// List by metadata.
const query = { metadata: ["customer=ts=1,2"], status: ["SUCCESS" as const] };
const page = data(await client.GET("/api/v1/tasks", { params: { query } }));
check(page.tasks.length === 3, page);

// Many at once.
const tasks = ["a", "b"].map((name) => ({ taskName: name, taskType: "NOOP" }));
const batch = data(await client.POST("/api/v1/tasks/batch", { body: { tasks } }));
check(batch.results.length === 2 && batch.results.every((result) => result.taskId !== undefined), batch);

// Cancel.
const later = { taskName: "later", taskType: "NOOP", delay: "1h" };
const waiting = data(await client.POST("/api/v1/tasks", { body: later }));
data(await client.DELETE("/api/v1/tasks/{id}", { params: { path: { id: waiting.taskId } } }));
const cancelled = data(await client.GET("/api/v1/tasks/{id}", byId(waiting.taskId)));
check(cancelled.status === "CANCELLED", cancelled);

// A schedule.
const schedule = { params: { path: { id: "ts-nightly" } } };
const nightly = { cron: "0 3 * * *", timezone: "Europe/Paris", task: { taskName: "report", taskType: "NOOP" } };
check(data(await client.PUT("/api/v1/schedules/{id}", { ...schedule, body: nightly })).enabled, nightly);
const next = { params: { path: { id: "ts-nightly" }, query: { count: 2 } } };
check(data(await client.GET("/api/v1/schedules/{id}/next", next)).times.length === 2, next);
const fired = data(await client.POST("/api/v1/schedules/{id}/trigger", schedule));
check(data(await client.GET("/api/v1/tasks/{id}", byId(fired.taskId))).schedule === "ts-nightly", fired);
const gone = await client.DELETE("/api/v1/schedules/{id}", schedule);
check(gone.response.status === 204, gone.error);

// A workflow.
const nodes = [
  { name: "extract", taskType: "SHELL", payload: "echo 7" },
  { name: "load", taskType: "SHELL", payload: "echo {{ nodes.extract.result.data }}", dependsOn: ["extract"] },
];
const started = data(await client.POST("/api/v1/workflows/runs", { body: { nodes } }));
const run = data(await client.GET("/api/v1/workflows/runs/{id}", byId(started.runId)));
check(run.status === "SUCCESS" && run.counts.succeeded === 2, run);

console.log("typescript: submit, wait, list, batch, cancel, schedule, workflow");
