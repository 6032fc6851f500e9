//! Numbers that keep their value on their way through the system, and expressions that would be too much
//! work.

use serde_json::{Value, json};
use tasklane_core::status::Status;
use tasklane_core::task::Payload;
use tasklane_core::time::Timestamp;
use tasklane_runtime::node::RunView;
use tasklane_runtime::request::{Analyzer, CustomType, PreviewRequest, RunRequest, TaskRequest};

use crate::support::{System, default_namespace, name, request};
use crate::workflows::{echo, node, view};

/// More than 64 bits, and more than 128.
const LONG: &str = "123456789012345678901234567890";
const LONGER: &str = "1234567890123456789012345678901234567890123456789";

/// Runs a workflow that is written as text: a `Value` would not hold its numbers.
async fn run(system: &System, json: &str) -> RunView {
    let request = RunRequest::from_json(json.as_bytes()).unwrap();
    let id = system.node.start_run(&default_namespace(), request).await.unwrap().id;
    system.wait(id).await;
    view(system, id).await
}

fn answered<'a>(run: &'a RunView, of: &str) -> &'a str {
    let node = node(run, of);
    assert_eq!(node.status, "SUCCESS", "{:?}", node.task.as_ref().map(|task| &task.state.error));
    &node.result.as_ref().unwrap().data
}

#[tokio::test(flavor = "multi_thread")]
async fn long_whole_numbers_stay_exact_and_are_refused_where_something_would_compute_with_them() {
    let system = System::start(vec![("ECHO", echo()), ("SHELL", echo())]).await;
    let run = run(
        &system,
        &format!(
            r#"{{"input":{{"id":{LONG}}},"nodes":[
                {{"name":"first","taskType":"ECHO","payload":{{"id":{LONG},"far":{LONGER},"of":"{{{{ input.id }}}}"}}}},
                {{"name":"next","taskType":"ECHO","dependsOn":["first"],"payload":{{"own":{LONGER},
                  "same":"{{{{ nodes.first.result.data.id }}}}","text":"id {{{{ nodes.first.result.data.id }}}}",
                  "more":"{{{{ nodes.first.result.data.id + 1 }}}}"}}}},
                {{"name":"wrong","taskType":"ECHO","dependsOn":["first"],"payload":"{{{{ nodes.first.result.data.far + 1 }}}}"}},
                {{"name":"many","taskType":"ECHO","dependsOn":["first"],"map":{{"items":[{LONG}]}}}}],
              "onFailure":"continue"}}"#
        ),
    )
    .await;
    assert_eq!(run.input, format!("{{\"id\":{LONG}}}"));
    let first: String = answered(&run, "first").to_owned();
    for part in [format!("\"id\":{LONG}"), format!("\"far\":{LONGER}"), format!("\"of\":{LONG}")] {
        assert!(first.contains(&part), "{part} in {first}");
    }
    let next = answered(&run, "next");
    let more = "123456789012345678901234567891";
    for part in [
        format!("\"own\":{LONGER}"),
        format!("\"same\":{LONG}"),
        format!("\"text\":\"id {LONG}\""),
        format!("\"more\":{more}"),
    ] {
        assert!(next.contains(&part), "{part} in {next}");
    }
    assert!(answered(&run, "many").contains(&format!("\"results\":[{LONG}]")), "{}", answered(&run, "many"));
    let error = node(&run, "wrong").task.as_ref().unwrap().state.error.clone();
    let error = error.map(|error| error.message).unwrap_or_default();
    assert!(error.contains("more than 128 bits"), "{error}");

    // A registered executor gets the values that were sent.
    let greet = json!({ "command": ["greet", "{{ payload.id }}"] }).to_string();
    system.node.put_executor(&default_namespace(), &name("greet"), greet.as_bytes(), false).await.unwrap();
    let payload = Payload::Json(format!("{{\"id\":{LONG}}}"));
    let id = system.submit(vec![TaskRequest { payload, ..request("greet") }]).await[0];
    let done = system.wait(id).await;
    assert_eq!(done.row.state.status, Status::Success);
    let body = done.row.body.unwrap();
    let given: Value = serde_json::from_str(body.run.as_ref().unwrap().as_str()).unwrap();
    assert_eq!((&given["argv"][1], &given["stdin"]), (&json!(LONG), &json!(format!("{{\"id\":{LONG}}}"))));
    system.close().await;
}

#[test]
fn what_some_programs_cannot_read_is_refused_where_it_comes_in() {
    for value in ["1e999", r#"{"a":[-1e400]}"#, r#""\ud800""#, r#"{"\udfff":1}"#] {
        let task = format!(r#"{{"taskName":"t","taskType":"ECHO","payload":{value}}}"#);
        let error = TaskRequest::from_json(task.as_bytes()).unwrap_err();
        assert_eq!((error.field.as_str(), error.code), ("payload", "invalid_value"), "{value}: {error}");
        let map = format!(r#"{{"taskName":"t","taskType":"ECHO","map":{{"items":[{value}]}}}}"#);
        assert_eq!(TaskRequest::from_json(map.as_bytes()).unwrap_err().field, "map.items");
        let run = format!(r#"{{"input":{value},"nodes":[{{"name":"a","taskType":"ECHO"}}]}}"#);
        assert_eq!(RunRequest::from_json(run.as_bytes()).unwrap_err().field, "input");
        let run = format!(r#"{{"nodes":[{{"name":"a","taskType":"ECHO","payload":{value}}}]}}"#);
        assert_eq!(RunRequest::from_json(run.as_bytes()).unwrap_err().field, "nodes[0].payload");
    }
}

#[test]
fn expressions_that_would_be_too_much_work_are_refused() {
    let registered =
        |argument: &str| CustomType::from_json(json!({ "command": ["x", argument] }).to_string().as_bytes());
    let chain = |count: usize| format!("{{{{ payload.text{} }}}}", " | upper".repeat(count));
    let joined = format!("{{{{ payload.text{} }}}}", " ~ payload.text".repeat(30));
    for argument in [chain(21), joined, "{{ 'x' | upper }}".repeat(1001)] {
        let error = registered(&argument).unwrap_err();
        assert_eq!((error.field.as_str(), error.code), ("command", "invalid_value"), "{error}");
        assert!(error.message.contains("at most"), "{error}");
    }
    let node = json!({ "name": "a", "taskType": "ECHO", "payload": "{{input}}".repeat(999) });
    let nodes: Vec<Value> = (0..21)
        .map(|at| {
            let mut node = node.clone();
            node["name"] = json!(format!("n{at}"));
            node
        })
        .collect();
    let error = RunRequest::from_json(json!({ "nodes": nodes }).to_string().as_bytes()).unwrap_err();
    assert_eq!((error.field.as_str(), error.code), ("nodes", "too_costly"), "{error}");
    let analyzer = json!({ "command": ["x", chain(21)] }).to_string();
    assert_eq!(Analyzer::from_json(analyzer.as_bytes()).unwrap_err().field, "command");
    let run = |argument: &str, len: usize| {
        let payload = Payload::Json(json!({ "text": "x".repeat(len) }).to_string());
        let request = TaskRequest { payload, ..request("greet") };
        registered(argument).unwrap().run_as(&request, 1).map(drop)
    };
    // Many small steps are fine, a few over much are fine, many over much are not.
    let many = format!("{{{{ payload.text{} | length }}}}", " | upper".repeat(15)).repeat(10);
    assert_eq!(run(&many, 100), Ok(()));
    assert_eq!(run("{{ payload.text | upper | length }}", 200_000), Ok(()));
    let error = run(&many, 200_000).unwrap_err();
    assert!(error.field == "payload" && error.message.contains("16777216 bytes"), "{error}");
}

#[test]
fn the_rarest_times_are_looked_for_within_bounds() {
    // The fifth Monday of a February comes every 28 years, and in this zone the clocks change twice in each.
    let rare = json!({ "cron": "0 0 * 2 MON#5", "timezone": "America/New_York", "count": 1000 }).to_string();
    let now = Timestamp::from_millis(1_800_000_000_000);
    let preview = PreviewRequest::from_json(rare.as_bytes()).unwrap().preview(now).unwrap();
    assert!((100..1000).contains(&preview.all.len()), "{}", preview.all.len());
    let never = json!({ "cron": "0 0 30 2 *", "timezone": "America/New_York", "count": 1000 }).to_string();
    let error = PreviewRequest::from_json(never.as_bytes()).unwrap().preview(now).unwrap_err();
    assert_eq!((error.field.as_str(), error.code), ("cron", "invalid_value"), "{error}");
}
